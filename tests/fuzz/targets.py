"""What is fuzzed: four functions that take any bytes, and raise where a rule is broken.

    frames      the frame decoder, the joiner of fragments and both ends of a connection
    messages    the codec of typed messages
    files       opening, reading, examining and repairing a conversation's file
    documents   importing what another program wrote, or what was exported here

The first byte of an input chooses a variant. Random bytes hardly ever have the right
checksum or fill a frame up, so a variant puts checksums right or fills frames up first.
`python -m tests.fuzz` runs them with atheris; `test_corpus` runs them on what it found.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.protocol.fake_link import WELCOME
from tests.storage.care_samples import all_entries, examined, planned
from tests.storage.conversations import Pen, counting_ids, prompt, ticking_clock
from tests.storage.file_fakes import MemoryFiles

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    MORE,
    REPLY_CODES,
    REPLY_TYPES,
    BrokenMessage,
    ClientConnection,
    Dialect,
    ErrorReceived,
    EventReceived,
    FragmentJoiner,
    Frame,
    FrameDecoder,
    LocalProtocolError,
    MessageType,
    RequestError,
    RequestRefused,
    ServerConnection,
    State,
    WireLimits,
    decode_event,
    decode_plain_request,
    decode_reply,
    decode_request,
    encode_event,
    encode_frame,
    encode_message,
    encode_plain_request,
    encode_reply,
    encode_request,
    messages,
)
from nplt_storage import MemoryStore, StorageError
from nplt_storage.codec import BadLine, decode_verified, encode_line, peek_seq
from nplt_storage.entries import Entry
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import FileEntries, Tail, decode_closing, file_name, session_id_of
from nplt_storage.files.salvage import CannotRepair, salvaged
from nplt_storage.maintenance.export import export_document
from nplt_storage.maintenance.importing import import_file
from nplt_storage.pages import PageQuery, read_page

# ------------------------------------------------------------------------------
# Frames, and connections without sockets

_SMALL = WireLimits(frame_bytes_max=400, message_bytes_max=200_000, json_keys_max=20)
_FILLS_UP = 1
_SMALL_LIMITS = 2


def frames(data: bytes) -> None:
    variant, sizes, stream = data[:1], data[1:5], data[5:]
    flags = variant[0] if variant else 0
    if flags & _FILLS_UP:
        stream = _filled_up(stream)
    limits = _SMALL if flags & _SMALL_LIMITS and not flags & _FILLS_UP else WireLimits()
    pieces = _pieces(stream, sizes)
    found, rest = _decoded([stream], limits)
    assert _decoded(pieces, limits) == (found, rest), "a split changes the frames"
    if rest is not None:
        again = b"".join(encode_frame(*frame) for frame in found) + stream[len(stream) - rest :]
        assert again == stream, "frames are not encoded as they came"
    assert all(str(frame).isprintable() for frame in found)
    _join(found)
    for make in (_new_server, _structured_server, _plain_client, _asking_client):
        whole, split = _received(make(limits), [stream]), _received(make(limits), pieces)
        assert whole == split, f"a split changes what is received: {make.__name__}"


def _pieces(data: bytes, sizes: bytes) -> list[bytes]:
    """Cut where `sizes` says; the last size goes on to the end."""
    cuts, place = [0], 0
    for size in sizes:
        place = min(place + size, len(data))
        cuts.append(place)
    if len(data) <= 600:
        cuts += range(place, len(data))
    return [data[start:end] for start, end in pairwise([*cuts, len(data)])]


def _filled_up(stream: bytes) -> bytes:
    """With whole frames wherever more fragments follow."""
    return b"".join(
        encode_frame(
            type_, seq, payload.ljust(FRAME_PAYLOAD_BYTES_MAX) if type_ & MORE else payload
        )
        for type_, seq, payload in FrameDecoder().receive_data(stream)
    )


def _decoded(pieces: Iterable[bytes], limits: WireLimits) -> tuple[list[Frame], int | None]:
    """The frames, and how many bytes wait; `None` after a header that announces too much."""
    decoder = FrameDecoder(limits.frame_bytes_max)
    found = [frame for piece in pieces for frame in decoder.receive_data(piece)]
    assert decoder.has_partial == bool(decoder.pending_bytes) or decoder.error
    return found, None if decoder.error else decoder.pending_bytes


def _join(found: list[Frame]) -> None:
    joiner = FragmentJoiner(300_000)
    for frame in found:
        for joined in joiner.receive_frame(frame):
            if isinstance(joined, BrokenMessage):
                assert isinstance(joined.error, RequestError)
            elif joined.type != MessageType.FILE_DATA:
                assert not joined.type & MORE
                assert len(joined.payload) <= 300_000 + FRAME_PAYLOAD_BYTES_MAX
                again, other = encode_message(*joined), FragmentJoiner(1 << 30)
                (whole,) = [
                    each
                    for part in FrameDecoder().receive_data(again)
                    for each in other.receive_frame(part)
                ]
                assert whole == joined, "a message is not encoded as it came"
    joiner.reset()
    assert not joiner.is_open


def _new_server(limits: WireLimits) -> ServerConnection:
    return ServerConnection(limits)


def _structured_server(limits: WireLimits) -> ServerConnection:
    server = ServerConnection(limits)
    server.receive_data(encode_frame(MessageType.HELLO, 1))
    server.send_welcome(1, WELCOME)
    return server


def _plain_client(limits: WireLimits) -> ClientConnection:
    return ClientConnection(Dialect.PLAIN, limits)


def _asking_client(limits: WireLimits) -> ClientConnection:
    """Welcomed, and waiting for some answers."""
    client = ClientConnection(limits=limits)
    server = ServerConnection()
    server.receive_data(client.send_hello())
    client.receive_data(server.send_welcome(1, WELCOME))
    for request in (messages.Prompt(text="a"), messages.SessionList(), messages.Ping(data=b"")):
        client.send(request)
    return client


def _received(end: ServerConnection | ClientConnection, pieces: list[bytes]) -> list[object]:
    found: list[object] = []
    for piece in pieces:
        for item in end.receive_data(piece):
            if isinstance(item, RequestRefused):
                refusal = item.error
                found.append((item.type, item.seq, refusal.code, refusal.message, refusal.field))
                if isinstance(end, ServerConnection) and end.state is State.STRUCTURED:
                    end.send_error(0, refusal)
            else:
                assert isinstance(item, EventReceived | ErrorReceived) or item
                found.append(item)
    found += [end.data_to_send(), end.has_partial, end.open_requests, end.state]
    end.close()
    assert not end.has_partial
    return found


# ------------------------------------------------------------------------------
# Typed messages

_LIMITS = WireLimits()
_ANSWERED = sorted(REPLY_TYPES)


def messages_(data: bytes) -> None:
    type_, payload = (data[0] if data else 0), data[1:]
    request = _or_refused(lambda: decode_request(type_, payload, _LIMITS))
    if request is not None:
        frame = _whole(encode_request(request, 7))
        assert decode_request(frame.type, frame.payload, _LIMITS) == request
    plain = _or_refused(lambda: decode_plain_request(type_, payload, _LIMITS))
    if plain is not None:
        _check_plain(plain)
    asked = _ANSWERED[type_ % len(_ANSWERED)]
    reply = _or_refused(lambda: decode_reply(asked, REPLY_CODES.get(asked, asked), payload))
    if reply is not None:
        frame = _whole(encode_reply(asked, 7, reply))
        assert decode_reply(asked, frame.type, frame.payload) == reply
    event = _or_refused(lambda: decode_event(type_, payload))
    if event is not None:
        frame = _whole(encode_event(event))
        assert decode_event(frame.type, frame.payload) == event


def _check_plain(request: Any) -> None:
    try:
        data = encode_plain_request(request, 7)
    except LocalProtocolError:
        # HEARTBEAT, and what a plain client says in another way.
        assert isinstance(request, messages.Prompt | messages.ModelSwitch)
        return
    frame = _whole(data)
    assert decode_plain_request(frame.type, frame.payload, _LIMITS) == request


def _or_refused(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RequestError as error:
        refused = error
    assert refused.message
    assert refused.code in ("malformed", "too_large", "unsupported")
    return None


def _whole(data: bytes) -> Frame:
    joiner = FragmentJoiner(1 << 30)
    (frame,) = [j for f in FrameDecoder().receive_data(data) for j in joiner.receive_frame(f)]
    assert isinstance(frame, Frame)
    return frame


# ------------------------------------------------------------------------------
# Files

_PATH = Path("history/session_20260102_s1.json")
_PUTS_RIGHT = 1
_CRC = re.compile(rb'^(,?)(\{.*),"crc":"[0-9a-f]{8}"(\}|,"messages":\[)$')
_SOUND = re.compile(rb'^,?((\{"seq":([1-9][0-9]{0,18}),"id":".*),"crc":"([0-9a-f]{8})"\})$')


def files(data: bytes) -> None:
    flags, content = (data[0] if data else 0), data[1:]
    if flags & _PUTS_RIGHT:
        content = _with_right_checksums(content)
    examination = examined(content)
    for finding in examination.findings:
        assert finding.code
        assert finding.message
    _check_opening(content, was_sound=examination.is_sound)
    _check_repair(content)


def _with_right_checksums(content: bytes) -> bytes:
    lines = content.split(b"\n")
    for place, line in enumerate(lines):
        if parts := _CRC.match(line):
            comma, body, end = parts.groups()
            lines[place] = b'%b%b,"crc":"%08x"%b' % (comma, body, crc32(body), end)
    return b"\n".join(lines)


def _sound_lines(content: bytes) -> dict[int, bytes]:
    """Lines whose checksum fits, found without the code that is tried."""
    found: dict[int, bytes] = {}
    for line in content.split(b"\n"):
        parts = _SOUND.match(line)
        if parts is None or parts[4] != b"%08x" % crc32(parts[2]):
            continue
        try:
            decode_verified(parts[1])
        except BadLine:
            continue
        found.setdefault(int(parts[3]), parts[1])
    return found


def _check_opening(content: bytes, *, was_sound: bool) -> None:
    disk = MemoryFiles()
    disk.put(_PATH, content)
    file = JsonFile(_PATH, "s1", files=disk, new_id=counting_ids())
    try:
        disk.close(file.open_for_appending())
    except StorageError:
        assert not was_sound, "sound, yet it can't be opened"
        assert bytes(disk.contents[_PATH]) == content, "refused, yet changed"
        return
    tail = file.tail
    assert tail is not None
    kept = {path: bytes(data) for path, data in disk.contents.items() if path != _PATH}
    if not any(".orig" in path.name for path in kept):
        _check_nothing_lost(content, bytes(disk.contents[_PATH]), tail, list(kept.values()))
    entries = _read_in_every_way(file)
    assert entries is not None or not was_sound, "sound, yet it can't be read"
    if entries is None:
        return
    assert _read_again(disk) == entries
    _check_appending(disk, file, entries)


def _check_nothing_lost(content: bytes, now: bytes, tail: Tail, aside: list[bytes]) -> None:
    assert now[: tail.end] == content[: tail.end], "opening changes lines"
    rest = content[tail.end :]
    assert not rest or decode_closing(rest) is not None or rest in aside, "an end is lost"


def _read_in_every_way(file: JsonFile) -> list[Entry] | None:
    """`None`: damaged in the middle, which reading says."""
    try:
        with file.reading() as source:
            entries = list(source.after(0))
            head = source.head_seq
            assert [entry.seq for entry in entries] == list(range(1, head + 1))
            assert list(source.before(head + 1))[::-1] == entries
            for entry in entries[:: max(1, len(entries) // 5)]:
                assert source.at(entry.seq) == entry
                _check_pages(source, entry.seq)
            return entries
    except StorageError:
        return None


def _check_pages(source: FileEntries, seq: int) -> None:
    for view, order in (("messages", "log"), ("messages", "turns"), ("entries", "log")):
        shape: dict[str, Any] = {"bytes_max": 4096, "view": view, "order": order}
        newest = read_page(PageQuery(limit=3, **shape), source)
        assert len(newest.messages) <= 3
        read_page(PageQuery(limit=2, around=seq, **shape), source)


def _read_again(disk: MemoryFiles) -> list[Entry]:
    file = JsonFile(_PATH, "s1", files=disk, new_id=counting_ids())
    before = bytes(disk.contents[_PATH])
    disk.close(file.open_for_appending())
    assert bytes(disk.contents[_PATH]) == before, "opening twice changes the file twice"
    with file.reading() as source:
        return list(source.after(0))


def _check_appending(disk: MemoryFiles, file: JsonFile, entries: list[Entry]) -> None:
    pen = Pen(new_id=counting_ids("later"))
    try:
        for entry in entries:
            pen.history.add(entry)
        more = pen.stamped(prompt("one-more"))
    except StorageError:
        return  # lines that fit no history
    appender = Appender(file)
    appender.commit(appender.prepare(more))
    appender.close()
    assert _read_again(disk) == [*entries, more], "an appended line is not found"


def _check_repair(content: bytes) -> None:
    readable = list(salvaged(_reader(content), len(content), "s1")[1])
    try:
        repair, repaired = planned(content)
    except CannotRepair:
        assert not readable
        return
    now = _sound_lines(repaired)
    nearby, before = [], 0
    for seq in sorted(_sound_lines(content)):
        if seq - before > 100_000:
            break
        nearby.append(seq)
        before = seq
    assert all(now[seq] in content for seq in nearby), "a repair loses a sound line"
    assert len(readable) >= repair.kept
    entries = _read_again_as(repaired)
    assert len(entries) >= repair.kept + sum(last - first + 1 for first, last in repair.lost)
    again, same = planned(repaired)
    assert same == repaired
    assert not again.says, f"a repaired file is repaired again: {again.says}"


def _read_again_as(content: bytes) -> list[Entry]:
    disk = MemoryFiles()
    disk.put(_PATH, content)
    return _read_again(disk)


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


# ------------------------------------------------------------------------------
# Documents


def documents(data: bytes) -> None:
    flags, document = (data[0] if data else 0), data[1:]
    if flags & _PUTS_RIGHT:
        document = _with_right_checksums(document)
    _runner().run(_check_import(document, "any.json" if flags & 2 else _PATH.name))


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


@cache
def _place() -> Path:
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="nplt-fuzz-", dir=shared if shared.is_dir() else None))


async def _check_import(document: bytes, name: str) -> None:
    path = _place() / name
    path.write_bytes(document)
    store = MemoryStore(ticking_clock())
    try:
        imported = await import_file(store, path, files=None, new_id=lambda: "fresh")
    except StorageError:
        return
    session_id = imported.session_id
    entries, origin = await all_entries(store, session_id), await store.origin(session_id)
    assert len(entries) == imported.entries
    assert session_id_of(file_name(session_id, origin.created_at)) == session_id
    for entry in entries:
        line = encode_line(entry)
        assert decode_verified(line) == entry
        assert peek_seq(line) == entry.seq
    exported = b"".join([piece async for piece in export_document(store, session_id)])
    disk, where = MemoryFiles(), Path(file_name(session_id, origin.created_at))
    disk.put(where, exported)
    if b'"beside":' not in exported[-100:]:
        file = JsonFile(where, session_id, files=disk, new_id=counting_ids())
        file.settle()
        with file.reading() as source:
            assert list(source.after(0)) == entries, "what was taken in can't be read again"
    path.write_bytes(exported)
    other = MemoryStore(ticking_clock())
    assert (await import_file(other, path, files=None)).session_id == session_id
    assert await all_entries(other, session_id) == entries, "an export is imported otherwise"
    assert await other.origin(session_id) == origin
    assert (await import_file(other, path, files=None)).was_there


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "messages": messages_,
    "files": files,
    "documents": documents,
}
CORPUS = Path(__file__).parent / "corpus"


def corpus(target: str) -> Iterator[Path]:
    return iter(sorted((CORPUS / target).iterdir()))
