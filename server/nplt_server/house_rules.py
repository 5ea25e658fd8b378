"""Settings' limits, dealt out to the parts that keep them."""

from __future__ import annotations

from nplt_protocol.json_values import JsonObject
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX, WireLimits
from nplt_server.connections.front_desk import ConnectionLimits
from nplt_server.connections.uploads import UploadLimits
from nplt_server.conversations.household import ApprovalRules, ConversationLimits
from nplt_server.conversations.turn import TurnLimits
from nplt_server.settings import Limits, Settings


def wire_limits(limits: Limits, *, need_tokens: bool) -> WireLimits:
    first = limits.frame_bytes_before_token_max if need_tokens else FRAME_PAYLOAD_BYTES_MAX
    return WireLimits(
        frame_bytes_max=first,
        message_bytes_max=limits.message_bytes_max,
        json_depth_max=limits.json_depth_max,
        json_keys_max=limits.json_keys_max,
        message_seconds_max=limits.message_seconds_max,
        event_bytes_max=limits.event_bytes_max,
        write_seconds_max=limits.write_seconds_max,
    )


def connection_limits(limits: Limits) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=limits.connections_max,
        connections_per_address_max=limits.connections_per_address_max,
        connections_per_user_max=limits.connections_per_user_max,
        hello_seconds_max=limits.hello_seconds_max,
        plain_heartbeat_seconds=limits.plain_heartbeat_seconds,
        plain_silence_seconds_max=limits.plain_silence_seconds_max,
        frames_per_second_max=limits.frames_per_second_max,
        prompts_per_minute_max=limits.prompts_per_minute_max,
    )


def conversation_limits(limits: Limits) -> ConversationLimits:
    return ConversationLimits(
        waiting_prompts_max=limits.waiting_prompts_max,
        turns_per_user_max=limits.turns_per_user_max,
        turns_max=limits.turns_max,
        message_bytes_max=limits.message_bytes_max,
    )


def turn_limits(limits: Limits) -> TurnLimits:
    return TurnLimits(
        steps_max=limits.steps_max,
        answer_bytes_max=limits.answer_bytes_max,
        call_seconds_max=limits.call_seconds_max,
        turn_seconds_max=limits.turn_seconds_max,
        result_bytes_max=limits.tool_result_bytes_max,
    )


def approval_rules(settings: Settings) -> ApprovalRules:
    return ApprovalRules(
        seconds_max=settings.limits.approval_seconds_max,
        wait_when_alone=settings.approvals.wait_when_alone,
    )


def upload_limits(limits: Limits) -> UploadLimits:
    return UploadLimits(file_bytes_max=limits.file_bytes_max)


def told_to_clients(limits: Limits) -> JsonObject:
    """What WELCOME says: the limits a client can do something about."""
    return {
        "frame_bytes_max": FRAME_PAYLOAD_BYTES_MAX,
        "message_bytes_max": limits.message_bytes_max,
        "file_bytes_max": limits.file_bytes_max,
        "waiting_prompts_max": limits.waiting_prompts_max,
        "history_page_max": 200,
    }
