"""Compiling contexts that grow: what was compiled before is not looked at again.

A call's context begins with that of the call before, message object by message
object. So compilations are kept, and go on where they stopped; the steps they gave
are given again, the same objects, for whoever prints them and wants to remember that
as well. A context that does not begin like one of those kept is compiled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TypeAlias

from nplt_server.context import ContextMessage
from nplt_server.providers.compiling.compiled import Compiled
from nplt_server.providers.compiling.compiler import Compilation
from nplt_server.providers.compiling.rules import VendorRules
from nplt_storage.facts.entries import ModelInvocationDescriptor

_Key: TypeAlias = tuple[int, ModelInvocationDescriptor]


class ContextCompiler:
    """Of one provider, for all conversations. It keeps what was said alive until
    `contexts_max` other contexts have been compiled."""

    def __init__(self, rules: VendorRules, *, contexts_max: int = 16) -> None:
        self._rules = rules
        self._contexts_max = contexts_max
        self._kept: dict[_Key, _Kept] = {}
        """Least recently used first."""

    def compile(
        self, messages: Sequence[ContextMessage], *, origin: ModelInvocationDescriptor
    ) -> Compiled:
        """The same as `compile_context`."""
        now = list(messages[:])
        # Kept messages are alive: as long as a key is there, no other object has its id.
        key = (id(now[0]) if now else 0, origin)
        kept = self._kept.pop(key, None)
        if kept is None or not kept.leads_to(now):
            kept = _Kept(Compilation(rules=self._rules, origin=origin))
        compiled = kept.go_on(now)
        self._kept[key] = kept
        if len(self._kept) > self._contexts_max:
            del self._kept[next(iter(self._kept))]
        return compiled


class _Kept:
    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._messages: list[ContextMessage] = []

    def leads_to(self, messages: list[ContextMessage]) -> bool:
        return len(self._messages) <= len(messages) and all(map(is_, self._messages, messages))

    def go_on(self, messages: list[ContextMessage]) -> Compiled:
        for message in messages[len(self._messages) :]:
            self._compilation.add(message)
        self._messages = messages
        return self._compilation.compiled()
