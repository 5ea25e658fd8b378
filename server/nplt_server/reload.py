"""Applies changed settings while the server runs, without dropping a turn.

Users, certificates, providers, models, tools and MCP servers are replaced. A running turn keeps its
providers. Tools that it has started are finished, and its next call is offered the new ones. The
old providers and MCP servers are closed once no such turn is left. Settings that need a restart
(addresses, histories, limits, …) keep their values and are listed in the result.

The files of a certificate are read again even if their paths are the same.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct

from nplt_protocol import ErrorCode
from nplt_server.app import Server, build_parts
from nplt_server.settings import Settings
from nplt_server.tls import load_certificate, tls_context

log = logging.getLogger(__name__)

_LIVE: Final = frozenset(
    (
        *("default_model", "providers", "local_servers", "discover", "models", "roles"),
        *("fallback", "fallback_on", "tools", "tool_roots", "mcp_servers", "users"),
        *("approvals", "on_too_long", "log_level"),
    )
)
"""The settings that are applied at once. All others are applied at the next start."""


class Reloaded(Struct, frozen=True, kw_only=True):
    changed: tuple[str, ...]
    """The settings that were applied."""
    need_restart: tuple[str, ...]
    """The settings that have changed and take effect at the next start."""


async def reload(server: Server, settings: Settings, *, started_with: Settings) -> Reloaded:
    """Raises `ConfigurationError` for mistakes; nothing has changed then. `started_with`: the
    settings as they were loaded at the start."""
    before = server.settings
    live = [name for name in sorted(_LIVE) if _differs(name, before, settings)]
    fixed = [name for name in Settings.model_fields if name not in _LIVE]
    rest = [name for name in fixed if _differs(name, started_with, settings)]
    if bool(before.users) != bool(settings.users):
        live.remove("users")  # conversations of `local` would belong to somebody else
        rest.append("users")
    merged = before.model_copy(update={name: getattr(settings, name) for name in live})
    if server.tls is not None:
        await anyio.to_thread.run_sync(tls_context, merged)  # whether it can be used at all
    _replace_parts(server, merged, live)
    if server.tls is not None:
        load_certificate(server.tls, merged)
    server.settings = merged
    if "users" in live:
        _replace_users(server, merged)
    server.services.approvals = merged.approvals
    server.services.on_too_long = merged.on_too_long
    logging.getLogger().setLevel(merged.log_level.upper())
    return Reloaded(changed=tuple(live), need_restart=tuple(rest))


def _differs(name: str, before: Settings, after: Settings) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def _replace_parts(server: Server, settings: Settings, changed: list[str]) -> None:
    """Replaces providers, models, tools and MCP servers. A key may have changed in its file, so
    providers are replaced even if their settings are the same."""
    services = server.services
    keeps_servers = "mcp_servers" not in changed
    running = services.mcp_servers if keeps_servers else None
    old_router = services.router
    router, context, tools, mcp_servers = build_parts(
        settings, clock=services.clock, mcp_servers=running, learned=old_router.learned
    )
    for name, route in old_router.routes.items():
        if (new := router.routes.get(name)) is not None:
            new.metrics = route.metrics
    # Extensions are loaded once; what was learned about tokens stays.
    services.context = replace(
        services.context,
        models=context.models,
        summarizer=context.summarizer,
        namer=context.namer,
    )
    services.router, services.tools, services.mcp_servers = router, tools, mcp_servers
    services.spawn(router.find_local_servers)
    server.open_routers.add(router)

    async def close_old_router() -> None:
        await _until_running_turns_are_over(server)
        await old_router.aclose()
        server.open_routers.discard(old_router)

    services.spawn(close_old_router)
    if not keeps_servers:
        old_servers, server.mcp_scope = server.mcp_scope, anyio.CancelScope()
        services.spawn(server.run_mcp_servers)

        async def stop_old_servers() -> None:
            await _until_running_turns_are_over(server)
            old_servers.cancel()

        services.spawn(stop_old_servers)


async def _until_running_turns_are_over(server: Server) -> None:
    """Waits for the conversations with a running turn, and for calls outside of turns."""
    busy = [each for each in server.session_manager if each.queue.running is not None]
    await anyio.sleep(server.services.limits.call_seconds_max)
    for conversation in busy:
        await conversation.activity.quiet()


def _replace_users(server: Server, settings: Settings) -> None:
    """Closes the connections of users whose token was removed or changed, also those that have
    given it but are not admitted yet."""
    gone = server.admission.replace_users(settings.users)
    sessions = [each for each in server.sessions if each.user in gone]
    # An HTTP connection may have no session: while its request is read, or while a model answers it
    # without a conversation.
    for each in dict.fromkeys((*sessions, *server.admission.connections_of(gone))):
        reason = "This token is no longer valid: the settings of the server have changed."
        each.send_away(reason, ErrorCode.UNAUTHORIZED)
