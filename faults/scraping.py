"""METRICS: half an hour of load, a scraper each second, and reloads of the settings meanwhile.

Six clients ask, fail, call a tool and cancel, and count how their turns ended. One scraper reads
`/metrics` each second: no counter may ever fall. Others ask for it and never read what they are
sent. Every few seconds the settings change and the server gets SIGHUP, a hundred times in all. In
the end the metrics must equal what the clients counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from faults.plan import Plan
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram
from nplt_client import connect

_CLIENTS = 6
_STALLED_SCRAPERS = 20
_RELOADS = 100
_CANCELLED = "!slow 30 words that nobody waits for"
_PROMPTS = ("a few words", "!fail", "!tool now {}", "!slow 0.2 some more words", _CANCELLED)
_OFFLINE = {"type": "offline", "words_per_second": 0}

Samples = dict[tuple[str, tuple[str, ...]], float]


@dataclass(slots=True, kw_only=True)
class Load:
    turns: Counter[str] = field(default_factory=Counter)
    """How the clients' turns ended, by state."""
    scrapes: int = 0
    slowest_scrape: float = 0.0
    reloads: int = 0
    complaints: list[str] = field(default_factory=list)


def scraping(plan: Plan) -> list[Result]:
    seconds, load = 20.0 if plan.quick else 1_800.0, Load()
    with ServerProgram(plan.new_path("metrics") / "data", settings=_settings(0)) as server:
        server.start()
        stalled = [_never_reading(server.http_port) for _ in range(_STALLED_SCRAPERS)]
        asyncio.run(_put_under_load(server, load, seconds))
        _compare(_scrape(server.http_port), load, sabotage=plan.sabotage)
        for sock in stalled:
            sock.close()
    promised = Promised(number="METRICS", what="load, a scraper each second, reloads")
    ended = ", ".join(f"{count:,} {state}" for state, count in sorted(load.turns.items()))
    today = (
        f"{seconds / 60:.1f} min: {ended}; {load.scrapes:,} scrapes, "
        f"the slowest {load.slowest_scrape * 1_000:.0f} ms; {load.reloads} reloads"
    )
    return [promised.judged(load.complaints, today)]


def _settings(number: int) -> Mapping[str, object]:
    """They differ in one provider, so that each reload has something to do."""
    providers = [{"id": "offline", **_OFFLINE}, {"id": f"other{number % 2}", **_OFFLINE}]
    return {"providers": providers, "log_level": "error"}


async def _put_under_load(server: ServerProgram, load: Load, seconds: float) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(
        *(_prompt(server.port, number, load, until) for number in range(_CLIENTS)),
        _scrape_each_second(server.http_port, load, until),
        _reload(server, load, until),
    )


async def _prompt(port: int, number: int, load: Load, until: float) -> None:
    async with connect(f"nplt://127.0.0.1:{port}") as client:
        while time.monotonic() < until:
            text = _PROMPTS[number % len(_PROMPTS)]
            number += 1
            async with client.ask(text) as turn:
                if text is _CANCELLED:
                    await turn.cancel()
                async for _ in turn:
                    pass
                assert turn.finished is not None
                load.turns[turn.finished.state] += 1
            await asyncio.sleep(0.25)


async def _scrape_each_second(port: int, load: Load, until: float) -> None:
    previous: Samples = {}
    while time.monotonic() < until:
        begun = time.monotonic()
        samples = await asyncio.to_thread(_scrape, port)
        load.slowest_scrape = max(load.slowest_scrape, time.monotonic() - begun)
        load.scrapes += 1
        load.complaints += [
            f"{name}{labels} fell from {value} to {samples.get((name, labels))}"
            for (name, labels), value in previous.items()
            if name.endswith("_total") and samples.get((name, labels), 0) < value
        ]
        previous = samples
        await asyncio.sleep(1)


async def _reload(server: ServerProgram, load: Load, until: float) -> None:
    pause = (until - time.monotonic()) / (_RELOADS + 1)
    config = server.data_dir.with_name(f"{server.data_dir.name}.yaml")
    while load.reloads < _RELOADS:
        await asyncio.sleep(pause)
        load.reloads += 1
        written = config.with_suffix(".new")
        written.write_text(json.dumps(_settings(load.reloads)))
        written.replace(config)  # at once: the server may read it at any moment
        os.kill(server.pid, signal.SIGHUP)


def _compare(samples: Samples, load: Load, *, sabotage: bool) -> None:
    turns = dict(load.turns)
    if sabotage:
        turns["completed"] += 1
    for state, count in turns.items():
        counted = samples.get(("nplt_turns_finished_total", ("offline/echo", state)), 0)
        if counted != count:
            load.complaints.append(f"{count} turns ended {state}, metrics count {counted:.0f}")
    total = samples["nplt_turns_started_total", ()]
    if total != sum(turns.values()):
        load.complaints.append(f"{sum(turns.values())} turns began, metrics count {total:.0f}")


def _scrape(port: int) -> Samples:
    """The samples by name and by the values of their labels, in the order of the labels' names."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _never_reading(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
    sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
    return sock
