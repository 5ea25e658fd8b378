"""Search: what is asked, what matches, in which order.

The same for every backend. All words of a query must occur in a message, those of a
script without spaces side by side; the last word may be a prefix. Entries that were
rolled back are not found. A cursor is the place of a page's last hit, newest first, so
that pages stay stable while messages are added.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from time import monotonic
from typing import Final, TypeAlias

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.errors import StorageUnavailable
from nplt_storage.rows import BadCursor, ConversationRow

# ------------------------------------------------------------------------------
# Words
#
# A word is a run of letters and digits, without case, width and accents: "Käse", "kase"
# and "ＫÄＳＥ" are one word. In scripts without spaces each character is a word. A change
# that yields other words for the same text raises `WORDS_VERSION`, and indexes are
# rebuilt.

WORDS_VERSION: Final = 1

WORD_CHARACTERS_MAX: Final = 64
"""Longer words are indexed by their beginning, since no one types the rest of a key."""

UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f"  # Burmese
    "\u1100-\u11ff"  # Hangul, in pieces
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf"  # radicals
    "\u3005-\u3007"  # 々 〆 〇
    "\u3031-\u3035\u3038-\u303c"
    "\u3041-\u30fa\u30fc-\u31ff"  # Kana, Bopomofo, Hangul letters
    "\u3400-\u4dbf\u4e00-\u9fff"  # Chinese characters
    "\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\uf900-\ufaff\U00020000-\U0003ffff"  # more Chinese characters
)
"""Characters of scripts without blanks between words, as ranges for a pattern."""

_ASCII_WORDS = re.compile("[0-9a-z]+")
_BLANK = re.compile("[ \n]")
_PIECE_CHARACTERS: Final = 32_768
# Indian scripts write vowels as marks, which are no letters but part of the word.
_SPACED = rf"(?:[^\W_{UNSPACED}]+|[\u0900-\u0963\u0966-\u0dff]+)+"
# As text: `re` compiles each when it is first used, which takes 4 ms a piece.
_UNSPACED = f"[{UNSPACED}]"
_WORDS = f"[{UNSPACED}]|{_SPACED}"
_WANTED = f"[{UNSPACED}]+|{_SPACED}"
_UNSEEN = re.compile(
    "["
    "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"  # accents
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # Hebrew points
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4"  # Arabic vowels
    "\u00ad\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff"  # what only layout cares for
    "]"
)


def words(text: str) -> list[str]:
    """The words in the order of the text. A long text is split piece by piece, because `re` blocks
    all other threads meanwhile."""
    if len(text) <= _PIECE_CHARACTERS:
        return _words(text)
    found: list[str] = []
    begin = 0
    while cut := _BLANK.search(text, begin + _PIECE_CHARACTERS):
        found += _words(text[begin : cut.start()])
        begin = cut.start()
    return found + _words(text[begin:])


def _words(text: str) -> list[str]:
    if text.isascii():
        found: list[str] = _ASCII_WORDS.findall(text.lower())
    else:
        found = re.findall(_WORDS, _plain(text))
    if max(map(len, found), default=0) > WORD_CHARACTERS_MAX:
        found = [word[:WORD_CHARACTERS_MAX] for word in found]
    return found


def _plain(text: str) -> str:
    """Folds case and removes accents; anything else that was decomposed is composed again."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = _UNSEEN.sub("", unicodedata.normalize("NFKD", folded))
    return unicodedata.normalize("NFC", bare)


def wanted_words(query: str) -> list[str]:
    """Like `words`, but a run of characters of a script without blanks is one term: its words
    joined by blanks."""
    found = (run[:WORD_CHARACTERS_MAX] for run in re.findall(_WANTED, _plain(query)))
    return [" ".join(run) if re.match(_UNSPACED, run) else run for run in found]


# ------------------------------------------------------------------------------
# Matching and snippets

Wanted: TypeAlias = tuple[str, ...]
"""The search terms as they appear in the words of a text joined by blanks: each has a blank on both
sides, the last one only before it, so that it matches as a prefix."""

WANTED_MAX: Final = 64
"""The number of words of a query that are used."""
SNIPPET_CHARACTERS: Final = 160

_BLOCK_SIZES = (8192, 128)
_RUNS = rf"[{UNSPACED}]|[^\s{UNSPACED}]+"


def query_words(text: str) -> Wanted:
    """The words of a query, each once."""
    *whole, last = wanted_words(text)[:WANTED_MAX] or [""]
    return (*(f" {word} " for word in dict.fromkeys(whole)), f" {last}") if last else ()


def matches(wanted: Wanted, text: str) -> bool:
    found_words = _joined(words(text))
    return bool(wanted) and all(one in found_words for one in wanted)


def snippet(text: str, wanted: Wanted, characters: int = SNIPPET_CHARACTERS) -> str:
    """One printable line around the first hit, with `…` where it was cut."""
    hit = _first_hit(text, wanted)
    begin = 0
    if len(text) > characters:
        begin = max(0, min(hit - characters // 4, len(text) - characters + 1))
        if begin and (blank := text.find(" ", begin, hit)) != -1:
            begin = blank + 1
    # Blanks are joined, so more is taken than can be shown.
    end = begin + 4 * characters
    line = _single_line(text[begin:end])
    if begin:
        line = "…" + line
    if len(line) > characters or end < len(text):
        line = line[: characters - 1].rstrip() + "…"
    return line


def _joined(found: Sequence[str]) -> str:
    return f" {' '.join(found)} "


def _first_hit(text: str, wanted: Wanted) -> int:
    """The offset of the first hit. The text is narrowed down block by block, because only whole
    words can be compared, and a word's index says little about its offset."""
    begin, end = 0, len(text)
    for size in _BLOCK_SIZES:
        # Cut at blanks, where no word is.
        for found in re.compile(rf"(?s).{{1,{size}}}\S*").finditer(text, begin, end):
            block = found.span()
            found_words = _joined(words(text[slice(*block)]))
            if any(one in found_words for one in wanted):
                begin, end = block
                break
        else:
            return begin
    return _place_in(text, begin, end, wanted)


def _place_in(text: str, begin: int, end: int, wanted: Wanted) -> int:
    starts: list[int] = []
    found: list[str] = []
    for run in re.compile(_RUNS).finditer(text, begin, end):
        found_words = words(run.group())
        found += found_words
        starts += [run.start()] * len(found_words)
    joined = _joined(found)
    hits = [place for one in wanted if (place := joined.find(one)) != -1]
    if not hits:
        return begin
    # A word begins one after the blank that its neighbour ends with.
    places = list(accumulate((len(word) + 1 for word in found), initial=0))
    return starts[bisect_right(places, min(hits)) - 1]


def _single_line(text: str) -> str:
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return line


SEARCHED_CHARACTERS_MAX: Final = 2**20
"""The length of a message that is searched; later text is not found."""

SearchPlace: TypeAlias = tuple[int, str, int]
"""The time (see `moment`), the conversation and the entry."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT_MAX = 2**55 - 2**20


class SearchQuery(Struct, frozen=True, kw_only=True):
    text: str
    limit: int = 20
    cursor: str | None = None
    seconds_max: float = 5.0
    """The time limit of a search, after which it raises `StorageUnavailable`."""
    ranked: bool = False
    """The best hits come first, not the newest: those that say more of the words, and rarer
    ones, more often. There is one page."""
    any_word: bool = False
    """Messages that hold at least one of the words are hits too, if hits are ranked."""
    first_in: str | None = None
    """The conversation whose hits come before all others. Only for ranked hits."""


class SearchHit(Struct, frozen=True, kw_only=True):
    session_id: str
    name: str
    seq: int
    role: str
    snippet: str
    timestamp: datetime
    score: float = 0.0
    """How well it fits, if hits were ranked; more is better."""


def place_of_hit(hit: SearchHit) -> SearchPlace:
    return (moment(hit.timestamp), hit.session_id, hit.seq)


class SearchPage(Struct, frozen=True, kw_only=True):
    """A page of hits, newest first."""

    hits: tuple[SearchHit, ...]
    next_cursor: str | None = None
    incomplete: bool = False
    """Whether a part of the store could not be searched."""


def searched_text(entry: Entry) -> str:
    """The searchable text of an entry; empty if it has none."""
    if isinstance(entry, ModelInputEntry | ModelOutputEntry):
        return entry.content[:SEARCHED_CHARACTERS_MAX]
    return ""


def is_visible(row: ConversationRow, seq: int) -> bool:
    return not any(first <= seq <= last for first, last in row.hidden)


def moment(timestamp: datetime) -> int:
    """The time in microseconds, small enough (the years 829 to 3111) to leave eight bits for
    messages of the same microsecond."""
    return max(-_MOMENT_MAX, min(microseconds(timestamp), _MOMENT_MAX))


def microseconds(timestamp: datetime) -> int:
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(count: int) -> datetime:
    return _EPOCH + timedelta(microseconds=count)


def write_search_cursor(place: SearchPlace) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode()


def read_search_cursor(cursor: str) -> SearchPlace:
    try:
        at, session_id, seq = orjson.loads(base64.urlsafe_b64decode(cursor))
        place = int(at), str(session_id), int(seq)
    except (binascii.Error, ValueError, TypeError, OverflowError):
        raise BadCursor("a cursor is the next_cursor of this search") from None
    if abs(place[0]) > _MOMENT_MAX:
        raise BadCursor("a cursor is the next_cursor of this search")
    return place


FoundMessage: TypeAlias = tuple[SearchPlace, SearchHit, str]
"""The place, the hit without a snippet, and the text."""


def hit_without_snippet(row: ConversationRow, seq: int, role: str, at: datetime) -> SearchHit:
    return SearchHit(
        session_id=row.session_id, name=row.name, seq=seq, role=role, snippet="", timestamp=at
    )


def cut_search_page(found: Sequence[FoundMessage], wanted: Wanted, limit: int) -> SearchPage:
    """A page of messages given newest first; there is one more than fits if there are further
    pages."""
    page = found[:limit]
    more = len(found) > limit and page
    return SearchPage(
        hits=tuple(replace(hit, snippet=snippet(text, wanted)) for _, hit, text in page),
        next_cursor=write_search_cursor(page[-1][0]) if more else None,
    )


def took_too_long(query: SearchQuery) -> StorageUnavailable:
    return StorageUnavailable(
        f"the search took longer than {query.seconds_max:g} s; ask for rarer words"
    )


def search_entries(
    found_words: Iterable[tuple[ConversationRow, Entry]], query: SearchQuery
) -> SearchPage:
    """Searches the entries of a user's conversations, given in any order, for stores without an
    index. At most one page of hits is held in memory."""
    wanted = query_words(query.text)
    if query.ranked:
        return _ranked(found_words, wanted, query)
    before = None if query.cursor is None else read_search_cursor(query.cursor)
    # The newest so far, the oldest of them first; one more than fits if there is more.
    newest: list[FoundMessage] = []
    until = monotonic() + query.seconds_max
    for row, entry in found_words:
        if monotonic() > until:
            raise took_too_long(query)
        text = searched_text(entry)
        place = (moment(entry.timestamp), row.session_id, entry.seq)
        if not text or (before is not None and place >= before):
            continue
        if len(newest) > query.limit and place <= newest[0][0]:
            continue
        if is_visible(row, entry.seq) and matches(wanted, text):
            hit = hit_without_snippet(row, entry.seq, entry.role, entry.timestamp)
            heapq.heappush(newest, (place, hit, text))
            if len(newest) > query.limit + 1:
                heapq.heappop(newest)
    return cut_search_page(sorted(newest, reverse=True), wanted, query.limit)


def _ranked(
    entries: Iterable[tuple[ConversationRow, Entry]], wanted: Wanted, query: SearchQuery
) -> SearchPage:
    """Ranks without an index: the score is the number of words that are found."""
    best: list[tuple[bool, float, SearchPlace, SearchHit, str]] = []
    until = monotonic() + query.seconds_max
    for row, entry in entries:
        if monotonic() > until:
            raise took_too_long(query)
        text = searched_text(entry)
        if not text or not is_visible(row, entry.seq):
            continue
        joined = _joined(words(text))
        score = float(sum(one in joined for one in wanted))
        if not score or (score < len(wanted) and not query.any_word):
            continue
        place = (moment(entry.timestamp), row.session_id, entry.seq)
        hit = hit_without_snippet(row, entry.seq, entry.role, entry.timestamp)
        is_first = row.session_id == query.first_in
        heapq.heappush(best, (is_first, score, place, replace(hit, score=score), text))
        if len(best) > query.limit:
            heapq.heappop(best)
    found = [(place, hit, text) for _, _, place, hit, text in sorted(best, reverse=True)]
    return ranked_page(found, wanted)


def ranked_page(found: Sequence[FoundMessage], wanted: Wanted) -> SearchPage:
    """A page of messages given best first."""
    hits = (replace(hit, snippet=snippet(text, wanted)) for _, hit, text in found)
    return SearchPage(hits=tuple(hits))
