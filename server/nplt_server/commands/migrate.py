"""`nplt-server migrate`: all conversations, from one place to another."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nplt_server.commands.surroundings import FileCommand, ProgressLine, storage_errors_said

if TYPE_CHECKING:
    from nplt_storage.care.migrating import Place
    from nplt_storage.store import ConversationStore


@click.command(cls=FileCommand)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def migrate(source: str, target: str) -> None:
    """Copy all conversations to another place.

    A place is a data directory or redis://HOST:PORT/DB[?key_prefix=PREFIX]. Those
    of every user are copied; FROM is only read. What is there already is passed
    over, so an interrupted run can be repeated; each copy is compared with its
    original. Exit code 1 if anything was left.
    """
    import anyio

    _refuse_confusion(source, target)
    with storage_errors_said(), _in_peace(source):
        counted = anyio.run(_migrate, source, target)
    copied, there, left = (counted[outcome] for outcome in ("copied", "there", "left"))
    click.echo(f"{copied} copied, {there} there already, {left} left")
    sys.exit(1 if left else 0)


def _refuse_confusion(source: str, target: str) -> None:
    from nplt_storage.care.redis_ids import SCHEMES, is_redis_url, parse_redis_url

    for place in (source, target):
        scheme, separator, _ = place.partition("://")
        if separator and not is_redis_url(place):
            raise click.UsageError(
                f"{place}: there are directories and {', '.join(f'{s}://' for s in SCHEMES)}, "
                f"but no {scheme}://"
            )
    if is_redis_url(source) != is_redis_url(target):
        return
    if is_redis_url(source):
        is_same, is_inside = parse_redis_url(source) == parse_redis_url(target), False
    else:
        before, after = Path(source).resolve(), Path(target).resolve()
        is_same, is_inside = before == after, before in after.parents
    if is_same:
        raise click.UsageError("FROM and TO are the same place")
    if is_inside:
        raise click.UsageError("TO is inside FROM, which is only read")


def _in_peace(source: str) -> AbstractContextManager[None]:
    """Nobody writes on in what is being left."""
    from nplt_storage.care.redis_ids import is_redis_url
    from nplt_storage.care.replacing import nobody_else_uses

    return nullcontext() if is_redis_url(source) else nobody_else_uses(Path(source))


async def _migrate(source: str, target: str) -> Counter[str]:
    from nplt_storage.care.migrating import migrate

    progress, counted = ProgressLine(), Counter[str]()
    async with _place(source) as place, _store(target) as (store, files):
        total = len(place.ids())
        try:
            async for moved in migrate(place, store, files=files):
                counted[moved.outcome] += 1
                if moved.outcome == "left":
                    progress.clear()
                    click.echo(f"{moved.session_id}: left: {moved.says}", err=True)
                elif "missing" in moved.says:
                    progress.clear()
                    click.echo(f"{moved.session_id}: {moved.says}", err=True)
                progress.show(f"{counted.total()} of {total}")
        finally:
            progress.clear()
    return counted


@asynccontextmanager
async def _place(text: str) -> AsyncIterator[Place]:
    import anyio.to_thread

    from nplt_storage.care.migrating import DirectoryPlace, StorePlace
    from nplt_storage.care.redis_ids import ids_in_redis, is_redis_url, parse_redis_url

    if not is_redis_url(text):
        yield DirectoryPlace(Path(text))
        return
    async with _store(text) as (store, _):
        ids = await anyio.to_thread.run_sync(ids_in_redis, parse_redis_url(text))
        yield StorePlace(store, ids)


@asynccontextmanager
async def _store(text: str) -> AsyncIterator[tuple[ConversationStore, Path | None]]:
    """And where its attachments are, if they are its business."""
    from nplt_storage.care.redis_ids import is_redis_url, parse_redis_url

    store: ConversationStore
    files: Path | None = None
    if is_redis_url(text):
        from nplt_storage.opening import StoreConfig, open_store

        address = parse_redis_url(text)
        options = {"url": address.url, "key_prefix": address.key_prefix}
        config = StoreConfig(type="redis", options=options)
        store = await open_store(config, data_dir=Path(), clock=_now)
    else:
        from nplt_storage.files.store import JsonFileStore

        opened = await JsonFileStore.open_directory(Path(text), clock=_now)
        store, files = opened, opened.directory.files
    try:
        yield store, files
    finally:
        await store.close()


def _now() -> datetime:
    return datetime.now(UTC)
