"""`/metrics`: counts for Prometheus, from the same places as STATUS.

Labels have few values: models that have a route (others count as `other`), states, names from the
settings. No label names a user or a conversation. What is counted is read on the event loop; the
text is written in a thread, because it is long on a server with many models. prometheus_client is
slow to load, so `health` imports this module at the first scrape.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry
from starlette.responses import Response

from nplt_protocol import SPEC_VERSION
from nplt_server import __version__
from nplt_server.app import Server
from nplt_server.counters import Counters
from nplt_server.providers.breaker import Breaker
from nplt_storage.durations import Durations
from nplt_storage.store import CountsCommits

_OTHER: Final = "other"
_NO_MODEL: Final = "none"
"""The model of turns that ended before one was called."""


async def scrape(server: Server) -> Response:
    free = await anyio.to_thread.run_sync(_free_bytes, server)
    families = [*families_of(server), free]
    text = await anyio.to_thread.run_sync(_as_text, families)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def families_of(server: Server) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "nplt_build",
        "The versions of the server.",
        {"version": __version__, "spec": SPEC_VERSION, "python": platform.python_version()},
    )
    yield GaugeMetricFamily(
        "nplt_uptime_seconds",
        "The time since the server started.",
        time.monotonic() - server.started_at,
    )
    yield from _connections(server)
    yield from _turns(server)
    yield from _models(server)
    yield from _tools(server)
    yield _hooks(server)
    yield from _storage(server)
    yield from _cluster(server)
    yield _histogram(
        "nplt_loop_delay_seconds",
        "How late the event loop runs what is due, measured once a second while turns run.",
        [((), server.loop_delay)],
    )


def _connections(server: Server) -> Iterator[Metric]:
    doors = Counter[str](session.door for session in tuple(server.sessions))
    yield _gauge("nplt_connections", "Open sessions.", "door", doors)
    watchers = GaugeMetricFamily(
        "nplt_watchers", "Sessions that watch the rows of conversations.", len(server.watchers)
    )
    yield watchers
    counters = server.services.counters.values()
    yield CounterMetricFamily(
        "nplt_lagged",
        "Clients that were detached because they read too slowly.",
        sum(each.lagged for each in counters),
    )
    yield CounterMetricFamily(
        "nplt_replays",
        "Attaching clients that were sent events which they had missed.",
        sum(each.replays for each in counters),
    )


def _turns(server: Server) -> Iterator[Metric]:
    services = server.services
    counters = list(services.counters.values())
    yield CounterMetricFamily(
        "nplt_turns_started", "Turns that began.", sum(each.turns_started for each in counters)
    )
    finished = CounterMetricFamily(
        "nplt_turns_finished", "Turns that ended.", labels=("model", "state")
    )
    for (model, state), number in _turns_by_model(server, counters).items():
        finished.add_metric((model, state), number)
    yield finished
    durations = (((), each.turn_seconds) for each in counters)
    yield _histogram("nplt_turn_seconds", "Durations of turns.", durations)
    states = Counter[str](each.queue.state for each in server.session_manager)
    yield _gauge("nplt_conversations", "Open conversations.", "state", states)
    yield GaugeMetricFamily(
        "nplt_turns_queued",
        "Prompts that wait for earlier turns of their conversation.",
        sum(len(each.queue.waiting) for each in server.session_manager),
    )
    waiting = Counter(services.slots.waiting([*services.counters]))
    yield _gauge("nplt_turns_waiting", "Turns that wait for a slot.", "limit", waiting)


def _turns_by_model(server: Server, counters: Iterable[Counters]) -> Counter[tuple[str, str]]:
    known = server.services.router.routes
    turns: Counter[tuple[str, str]] = Counter()
    for each in counters:
        for (model, state), number in each.turns_finished.items():
            name = model if model in known else _OTHER if model else _NO_MODEL
            turns[name, state] += number
    return turns


def _models(server: Server) -> Iterator[Metric]:
    services = server.services
    calls = CounterMetricFamily("nplt_model_calls", "Calls of models.", labels=("model",))
    retries = CounterMetricFamily("nplt_model_retries", "Repeated calls.", labels=("model",))
    fail_overs = CounterMetricFamily(
        "nplt_model_fail_overs", "Calls that a fallback got instead.", labels=("model",)
    )
    failures = CounterMetricFamily(
        "nplt_model_failures", "Failed calls.", labels=("model", "reason")
    )
    tokens = CounterMetricFamily("nplt_tokens", "Tokens, as billed.", labels=("model", "kind"))
    cost = CounterMetricFamily("nplt_cost_dollars", "Costs in US dollars.", labels=("model",))
    first, whole = [], []
    for name, route in services.router.routes.items():
        metrics = route.metrics
        if not (metrics.calls or metrics.failures):
            continue
        calls.add_metric((name,), metrics.calls)
        retries.add_metric((name,), metrics.retries)
        fail_overs.add_metric((name,), metrics.fail_overs)
        for reason, number in metrics.failures.items():
            failures.add_metric((name, reason), number)
        tokens.add_metric((name, "input"), metrics.input_tokens)
        tokens.add_metric((name, "output"), metrics.output_tokens)
        tokens.add_metric((name, "cached"), metrics.cached_tokens)
        tokens.add_metric((name, "cache_write"), metrics.cache_write_tokens)
        prices = services.context.models.facts(name).prices
        if prices is not None:
            cost.add_metric((name,), float(metrics.cost(prices)))
        first.append(((name,), metrics.first_token))
        whole.append(((name,), metrics.whole))
    yield from (calls, retries, fail_overs, failures, tokens, cost)
    yield _histogram(
        "nplt_first_token_seconds", "Time to the first token of a call.", first, ("model",)
    )
    yield _histogram("nplt_call_seconds", "Durations of whole calls.", whole, ("model",))
    breakers = GaugeMetricFamily(
        "nplt_breaker_open", "1 while a provider is not called.", labels=("provider",)
    )
    for provider, breaker in services.router.breakers.items():
        breakers.add_metric((provider,), _is_open(breaker))
    yield breakers


def _is_open(breaker: Breaker) -> float:
    return float(breaker.state == "open")


def _tools(server: Server) -> Iterator[Metric]:
    calls = CounterMetricFamily(
        "nplt_tool_calls",
        "Tool calls; `server` is the MCP server, and empty for other tools.",
        labels=("server", "status"),
    )
    total: Counter[tuple[str, str]] = Counter()
    for each in server.services.counters.values():
        total.update(each.tool_calls)
    for labels, number in total.items():
        calls.add_metric(labels, number)
    yield calls
    connected = GaugeMetricFamily(
        "nplt_mcp_server_connected", "1 while an MCP server can be used.", labels=("server",)
    )
    for name, one in server.services.mcp_servers.by_name.items():
        connected.add_metric((name,), float(one.state == "connected"))
    yield connected


def _hooks(server: Server) -> Metric:
    runs = CounterMetricFamily(
        "nplt_hooks", "Commands of `hooks`, by what came of them.", labels=("event", "outcome")
    )
    if server.services.hooks is not None:
        for labels, number in server.services.hooks.outcomes.items():
            runs.add_metric(labels, number)
    return runs


def _storage(server: Server) -> Iterator[Metric]:
    writable = GaugeMetricFamily(
        "nplt_store_writable", "0 while a history is read-only.", labels=("history",)
    )
    failed = CounterMetricFamily(
        "nplt_commit_failures", "Entries that could not be written.", labels=("history",)
    )
    commits = []
    for profile in server.services.histories:
        writable.add_metric((profile.id,), float(profile.read_only_reason is None))
        if isinstance(profile.store, CountsCommits):
            commits.append(((profile.id,), profile.store.commits.seconds))
            failed.add_metric((profile.id,), profile.store.commits.failed)
    yield from (writable, failed)
    yield _histogram(
        "nplt_commit_seconds", "How long it took to store an entry.", commits, ("history",)
    )


def _free_bytes(server: Server) -> Metric:
    free = GaugeMetricFamily("nplt_disk_free_bytes", "Free space where the data directory is.")
    try:
        found = os.statvfs(server.settings.data_dir)
    except OSError:
        return free
    free.add_metric((), found.f_bavail * found.f_frsize)
    return free


def _cluster(server: Server) -> Iterator[Metric]:
    shared = server.services.histories.shared
    if shared is None:
        return
    counts = shared.counts
    yield GaugeMetricFamily(
        "nplt_cluster_members", "Servers that share the history.", len(shared.view.members)
    )
    problems = (*shared.view.problems, *server.peers.problems)
    yield GaugeMetricFamily(
        "nplt_cluster_problems", "What an operator should change; STATUS says what.", len(problems)
    )
    for name, says, number in (
        ("nplt_takeovers", "Conversations taken over from another server.", counts.takeovers),
        ("nplt_leases_lost", "Conversations that another server took over.", counts.leases_lost),
        (
            "nplt_writes_fenced",
            "Writes refused to a server that lost its lease.",
            counts.writes_fenced,
        ),
        ("nplt_store_outages", "How often the shared store was away.", counts.outages),
        ("nplt_store_outage_seconds", "How long it was away.", counts.outage_seconds),
        (
            "nplt_journal_gaps_mended",
            "Running answers that were stored again from their beginning.",
            counts.journal_gaps_mended,
        ),
        (
            "nplt_relays_failed",
            "Requests that another server did not answer.",
            server.peers.relays_failed,
        ),
    ):
        yield CounterMetricFamily(name, says, number)


def _gauge(name: str, says: str, label: str, values: Counter[str]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


def _histogram(
    name: str,
    says: str,
    rows: Iterable[tuple[tuple[str, ...], Durations]],
    labels: tuple[str, ...] = (),
) -> Metric:
    """Rows with the same labels are added up; their bounds are equal."""
    family = HistogramMetricFamily(name, says, labels=labels)
    total: dict[tuple[str, ...], Durations] = {}
    for values, durations in rows:
        if (sum_so_far := total.get(values)) is None:
            sum_so_far = total[values] = Durations(durations.bounds)
        sum_so_far.include(durations)
    for values, durations in total.items():
        buckets, below = [], 0
        edges = (*(f"{bound:g}" for bound in durations.bounds), "+Inf")
        for place, edge in enumerate(edges):
            below += durations.buckets[place]
            buckets.append((edge, float(below)))
        family.add_metric(values, buckets, durations.seconds)
    return family


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _as_text(families: list[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)
