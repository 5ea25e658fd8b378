"""CONTEXT_REQUEST, TOOLS, USAGE, COMPACT, ROLLBACK: what a conversation thinks with."""

from __future__ import annotations

from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import ToolList
from nplt_protocol.requests import Compact, ContextRequest, Rollback, Tools, Usage
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations import changes
from nplt_server.conversations.accounts import account_of_context, account_of_usage
from nplt_server.conversations.compacting import compact
from nplt_server.conversations.conversation import Conversation
from nplt_server.presenters.base import Answer


async def context(
    premises: Premises, session: Session, request: ContextRequest, answer: Answer
) -> None:
    conversation = await _meant(premises, session, request.session_id)
    model = conversation.model
    if request.model is not None:
        model = conversation.check_model(request.model)
    house = premises.household
    answer.give(
        await account_of_context(
            conversation.mind,
            house.thinking,
            model=model,
            text=request.text,
            bytes_max=answer.bytes_max or house.limits.message_bytes_max,
        )
    )


async def tools(premises: Premises, session: Session, request: Tools, answer: Answer) -> None:
    conversation = await _meant(premises, session, request.session_id)
    every = premises.household.tools.every
    asks = any(policy == "ask" for _, policy in every)
    remembered = await conversation.approvals.remembered() if asks else {}
    listed: list[JsonObject] = [
        {
            "name": tool.name,
            "description": tool.description,
            "schema": tool.parameters,
            "class": tool.tool_class,
            "policy": remembered.get(tool.name, policy) if policy == "ask" else policy,
        }
        for tool, policy in every
    ]
    answer.give(ToolList(session_id=conversation.session_id, tools=tuple(listed)))


async def usage(premises: Premises, session: Session, request: Usage, answer: Answer) -> None:
    conversation = await _meant(premises, session, request.session_id)
    thinking = premises.household.thinking
    await conversation.mind.ready()
    answer.give(account_of_usage(conversation.mind, thinking, model=conversation.model))


async def compact_context(
    premises: Premises, session: Session, request: Compact, answer: Answer
) -> None:
    conversation = await _meant(premises, session, request.session_id)
    if conversation is session.conversation:
        session.check_may_speak()
    conversation.queue(
        lambda: compact(conversation.mind, premises.household.thinking, model=conversation.model),
        done=answer.give,
        failed=lambda error: session.refuse(answer, error),
    )


async def rollback(premises: Premises, session: Session, request: Rollback, answer: Answer) -> None:
    conversation = await _meant(premises, session, request.session_id)
    if conversation is session.conversation:
        session.check_may_speak()
    answer.give(await changes.roll_back(conversation, request.to_seq))


async def _meant(premises: Premises, session: Session, session_id: str | None) -> Conversation:
    if session_id is None:
        return session.here()
    return await premises.registry.get(session_id, session.user)
