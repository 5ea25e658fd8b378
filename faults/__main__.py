"""`python -m faults [P1 P3 …]`: injects faults, and prints which promises were kept.

The exit code is 0 if every promise that was checked was kept, 1 if one was broken or a check could
not run, 2 if there is no such check. A check that this machine can't run (no root, no strace) is
skipped with a message.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.scratch import scratch_directory

from faults.approvals import approvals
from faults.backups import backups
from faults.black_holes import black_holes
from faults.cancels import cancels
from faults.cluster_chaos import chaos
from faults.cluster_costs import costs
from faults.cluster_rows import acquire, clusters, failover, frozen, rolling, slots
from faults.damage import damage
from faults.failed_syncs import failed_syncs
from faults.full_disk import full_disk
from faults.kills import kills
from faults.mid_stream import mid_stream
from faults.one_order import one_order
from faults.plan import Plan
from faults.power_cuts import power_cuts
from faults.pressure import flood_tls, fragments, heavy, quota
from faults.random_frames import random_frames
from faults.resending import resending
from faults.results import CannotBeDone, Promised, Result, table
from faults.resumed_responses import resumed_responses
from faults.scraping import scraping
from faults.searches import searches
from faults.skewed_clocks import skewed_clocks
from faults.slow_reader import slow_reader
from faults.soak import soak
from faults.stalled_peers import stalled_peers
from faults.switching import switching
from faults.system_calls import system_calls
from faults.torn_files import torn_files
from faults.vendors import vendors
from faults.watching import prompts_for_later, watchers

Check = Callable[[Plan], list[Result]]

CHECKS: dict[str, tuple[Check, str]] = {
    "P1": (kills, "kill -9 under load"),
    "P2": (power_cuts, "power cuts: an ext4 image is shut down and mounted again (root)"),
    "P3": (system_calls, "death at each system call of a commit (strace)"),
    "P4": (full_disk, "a full disk: a small tmpfs (root), refused writes (strace)"),
    "P5": (failed_syncs, "syncs that fail (strace)"),
    "P6": (torn_files, "a file of 1,000 messages, cut and with bits flipped"),
    "DAMAGE": (damage, "a corpus of damaged directories, in little memory (strace for links)"),
    "P9": (random_frames, "random frames, while another client prompts"),
    "P7": (resending, "prompts through a proxy that cuts before and after the receipt, and kills"),
    "P8": (one_order, "fifty clients prompt one conversation at once"),
    "P10": (stalled_peers, "a hundred stalled and a hundred flooding peers"),
    "P14": (cancels, "cancels at any moment, with tools and waiting prompts"),
    "ASK": (approvals, "three clients race to allow or deny a tool; kills meanwhile"),
    "P15": (vendors, "vendors that fail, alternate, and are shown every kind of history"),
    "RESUME": (mid_stream, "kills while answers stream: clients resume"),
    "P23": (resumed_responses, "streams of responses, cut and killed, resumed by OpenAI's library"),
    "P26": (watchers, "watchers of a thousand conversations, and every fault of a cluster"),
    "P27": (prompts_for_later, "prompts for later, and kills around their times"),
    "LAG": (slow_reader, "a client that reads nothing for a minute"),
    "HEAVY": (heavy, "twenty connections of one user ask for long contexts, another has a turn"),
    "QUOTA": (quota, "a user uploads and forks without end"),
    "FRAGMENTS": (fragments, "unfinished messages on many connections, then closed"),
    "FLOOD-TLS": (flood_tls, "strangers fill a TLS port, silent or with a wrong token (openssl)"),
    "BACKUP": (backups, "copies of the data directory while clients prompt"),
    "SEARCH": (searches, "heavy searches, and a catalogue that is damaged while in use"),
    "SWITCH": (switching, "clients switch between conversations that stream"),
    "METRICS": (scraping, "half an hour of load: metrics against the clients' counts, reloads"),
    "SOAK": (soak, "every request by twenty clients for half an hour: what leaks"),
    "CLUSTER": (clusters, "servers over one Redis: kills, stops, cut links, Redis restarted"),
    "CHAOS": (chaos, "twenty minutes of faults of servers, links and Redis in any order"),
    "BLACKHOLE": (black_holes, "packets to Redis and between servers vanish (root, iptables)"),
    "SKEW": (skewed_clocks, "the servers' clocks differ by hours and jump, and faults (cc)"),
    "ROLLING": (rolling, "servers behind HAProxy and nginx restarted one after the other"),
    "FAILOVER": (failover, "Sentinel makes the replica the primary under load"),
    "SLOTS": (slots, "slots of a Redis Cluster moved, and servers killed, under load"),
    "COSTS": (costs, "the cost of relaying, the gain of a second server, a thousand watchers"),
    "ACQUIRE": (acquire, "fifty processes try to get the same thousand conversations"),
    "FROZEN": (frozen, "an owner stopped past its lease continues after a take-over"),
}


def main() -> int:
    options = _options()
    if options.list:
        print("\n".join(f"{number}  {what}" for number, (_, what) in CHECKS.items()))
        return 0
    # SIGTERM also unmounts and stops what the check has started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    results: list[Result] = []
    with scratch_directory(options.dir, prefix="nplt-faults-") as scratch:
        plan = Plan(
            scratch=scratch,
            seed=options.seed,
            quick=options.quick,
            sabotage=options.sabotage,
            plots=options.plots,
        )
        for number in options.numbers or CHECKS:
            results += _carry_out(number, plan)
    print(table(results))
    for skipped in (result for result in results if result.outcome == "SKIPPED"):
        print(f"SKIPPED {skipped.number}: {skipped.what}: {skipped.today}", file=sys.stderr)
    return 1 if any(result.outcome == "BROKEN" for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faults", description="Inject faults, and check every promise."
    )
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", type=str.upper, help="P1 P3 …")
    parser.add_argument("--quick", action="store_true", help="fewer faults of each kind")
    parser.add_argument("--list", action="store_true", help="list the checks, and exit")
    parser.add_argument("--seed", type=int, default=2026, help="seed of all random choices")
    parser.add_argument("--dir", type=Path, help="where to put files meanwhile")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where to draw curves (SOAK)")
    parser.add_argument(
        "--sabotage",
        action="store_true",
        help="remove an acknowledged line after each fault: every check must fail",
    )
    options = parser.parse_args()
    if unknown := [number for number in options.numbers if number not in CHECKS]:
        parser.error(f"no such check: {', '.join(unknown)} (there are {', '.join(CHECKS)})")
    return options


def _carry_out(number: str, plan: Plan) -> list[Result]:
    check, what = CHECKS[number]
    promised = Promised(number=number, what=what)
    begun = time.monotonic()
    try:
        results = check(plan)
    except CannotBeDone as reason:
        results = [promised.skipped(str(reason))]
    except Exception as error:
        # A check that can't run must not hide the results of the others.
        traceback.print_exc()
        results = [promised.judged([f"{type(error).__name__}: {error}"], "not carried out")]
    print(f"{number} took {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
