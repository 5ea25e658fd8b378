"""Blobs: what is too large for an entry, in pieces, by who may have it."""

from __future__ import annotations

import hashlib

from nplt_storage.errors import StorageError
from nplt_storage.testing.expecting import expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import Writer, asking, entries_of, looking, prompt

RULES = RuleBook()
DATA = bytes(range(256)) * 5_000


@RULES.add
async def a_blob_is_read_whole_or_in_part(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    blob = await writer.record.keep_blob(DATA)
    expect_equal(blob.size, len(DATA), "its size")
    expect_equal(blob.sha256, hashlib.sha256(DATA).hexdigest(), "its digest")
    await writer.write(prompt("t1"), asking("t1"), looking("t1", "its beginning", blob))
    for offset, length in ((0, len(DATA)), (0, 1), (255, 3), (len(DATA) - 2, 10), (5, 0)):
        found = await store.blob("s1", blob.blob_id, offset, length)
        what = f"{length} bytes from {offset}"
        expect_equal(found == DATA[offset : offset + length], True, what)
    expect_equal(await store.blob("s1", blob.blob_id, len(DATA), 10), b"", "beyond its end")
    expect_equal(await store.blob("s1", blob.blob_id, 10**9, 10), b"", "far beyond its end")
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")


@RULES.add
async def the_same_bytes_may_be_kept_twice_and_none_at_all(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    for data in (b"twice", b"twice", b""):
        blob = await writer.record.keep_blob(data)
        expect_equal(await store.blob("s1", blob.blob_id, 0, 10), data, "what was kept")


@RULES.add
async def a_blob_that_is_not_there_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    other = await Writer.create(make, store, "s2")
    blob = await other.record.keep_blob(b"of the other")
    await writer.record.keep_blob(b"mine")
    for unknown in ("0" * 64, "", "../s1", "*", blob.blob_id):
        with refused(StorageError, what=f"the blob {unknown!r}"):
            await store.blob("s1", unknown, 0, 10)
    for offset, length in ((-1, 5), (0, -1)):
        with refused(StorageError, what=f"{length} bytes from {offset}"):
            await store.blob("s2", blob.blob_id, offset, length)
