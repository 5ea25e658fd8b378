"""A model that is a Python function: for scripts, tests, and answers no model is needed for.

The function gets the request and gives what the model says: a text, or pieces
one after the other from a generator, async or not, or a coroutine that ends with
either. An answer of texts alone is complete when it ends; a function that speaks
in deltas says all that a provider says, `Stopped` at the end included. One that
is not async runs on the event loop: it is meant to be quick.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)
from contextlib import AbstractAsyncContextManager, aclosing
from importlib import import_module
from inspect import isawaitable
from typing import TypeAlias

import anyio.lowlevel

from nplt_server.deltas import ModelOutputDelta, Stopped, TextPiece
from nplt_server.errors import ConfigurationError
from nplt_server.providers.base import ModelRequest

Piece: TypeAlias = str | ModelOutputDelta
Said: TypeAlias = str | Iterable[Piece] | AsyncIterable[Piece]
ModelFunction: TypeAlias = Callable[[ModelRequest], Said | Awaitable[Said]]


class ScriptedProvider:
    specification = "python"

    def __init__(
        self,
        function: ModelFunction,
        *,
        provider_id: str = "scripted",
        models: tuple[str, ...] = ("model",),
    ) -> None:
        self.id = provider_id
        self.models = models
        self._function = function

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._play(request))

    async def aclose(self) -> None:
        pass  # it holds nothing

    async def _play(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        said = self._function(request)
        if isawaitable(said):
            said = await said
        speaks_in_deltas = False
        async with aclosing(_pieces(said)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield TextPiece(text=piece)
                else:
                    speaks_in_deltas = True
                    yield piece
        if not speaks_in_deltas:
            yield Stopped(reason="end")


async def _pieces(said: Said) -> AsyncGenerator[Piece, None]:
    if isinstance(said, str):
        yield said
    elif isinstance(said, AsyncIterable):
        async for piece in said:
            yield piece
    else:
        for piece in said:
            yield piece
            await anyio.lowlevel.checkpoint()


def load_function(name: str) -> ModelFunction:
    """`package.module:function`; a mistake is the operator's to mend."""
    module_name, _, function_name = name.partition(":")
    try:
        found: ModelFunction = getattr(import_module(module_name), function_name)
    except Exception as error:  # whatever a module of the operator's does when it is read
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError([f"providers: {name!r} can't be loaded: {why}"]) from None
    if not callable(found):
        raise ConfigurationError([f"providers: {name!r} is not a function"])
    return found
