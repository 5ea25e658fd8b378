"""`nplt search`: what was found, page by page until there is enough of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from nplt_client.ask_json import json_text
from nplt_client.link import Link
from nplt_client.opening import open_for_command
from nplt_client.sanitize import sanitize_line
from nplt_client.showing import short_ids, when
from nplt_client.terminal import say
from nplt_client.walking import Walk
from nplt_protocol.replies import SearchHit, SearchHits
from nplt_protocol.requests import Search
from nplt_protocol.shapes import write

_PAGE = 100


def print_hits(query: str, *, server: str | None, limit: int, as_json: bool) -> None:
    with open_for_command(server) as link:
        hits = list(islice(_all_hits(link, query, limit), limit))
    if as_json:
        print(json_text([write(hit) for hit in hits], pretty=True))
    elif hits:
        print(hits_text(hits))
    else:
        say(f"nothing was found for {query!r}")


def _all_hits(link: Link, query: str, limit: int) -> Iterator[SearchHit]:
    walk, cursor = Walk(), None
    while True:
        asked = Search(query=query, limit=min(limit, _PAGE), cursor=cursor)
        page = link.request(asked, SearchHits)
        yield from page.hits
        cursor = walk.on(page.next_cursor)
        if cursor is None:
            return


def hits_text(hits: Sequence[SearchHit]) -> str:
    """A line for where it is, and one for what is said there."""
    short = short_ids([hit.session_id for hit in hits])
    return "\n".join(
        f"{_place(hit, short[hit.session_id])}\n    {sanitize_line(hit.snippet)}".rstrip()
        for hit in hits
    )


def _place(hit: SearchHit, short_id: str) -> str:
    who = "its name" if hit.role == "name" else f"[{hit.seq}] {hit.role}"
    return sanitize_line(f"{short_id}  {hit.name} · {who} · {when(hit.timestamp)}")
