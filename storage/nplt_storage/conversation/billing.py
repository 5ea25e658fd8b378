"""What the calls of a conversation were billed for, by model.

Counted from the outputs, the summaries and the faults that say what they used: a call
that gave nothing to remember was billed all the same. A rollback takes nothing back:
what was billed was billed. A fork begins at nothing: its entries were copied,
and the conversation they came from was billed for them. An import goes on from there.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from nplt_storage.conversation.views import model_name
from nplt_storage.facts.entries import CompactionEntry, FaultEntry, ModelOutputEntry
from nplt_storage.facts.json_values import JsonValue

BilledModel: TypeAlias = tuple[str, int, int, int, int]
"""The model as provider/model, calls, tokens of input, of output, and of the input
those that came from the provider's cache."""
Billed: TypeAlias = tuple[BilledModel, ...]

MODELS_MAX: Final = 64
OTHERS: Final = "other"
"""What is counted together once there are too many; no model is called that."""
_COUNTED_MAX: Final = 2**53 - 1
"""A provider may say anything; a row must stay readable by everyone."""
_COUNTED: Final = ("input_tokens", "output_tokens", "cached_tokens")


def billed_with(billed: Billed, entry: ModelOutputEntry | CompactionEntry | FaultEntry) -> Billed:
    if entry.usage is None:
        return billed
    model = "" if entry.invocation is None else model_name(entry.invocation)
    read, written, cached = map(_count, map(entry.usage.get, _COUNTED))
    return _added(billed, (model, 1, read, written, cached))


def billed_together(billed: Billed, more: Billed) -> Billed:
    for one in more:
        billed = _added(billed, one)
    return billed


def read_billed(value: JsonValue) -> Billed:
    """From JSON; what is not as we write it counts nothing."""
    return tuple(
        (one[0], _count(one[1]), _count(one[2]), _count(one[3]), _count(one[4]))
        for one in (value if isinstance(value, list) else ())
        if isinstance(one, list) and len(one) == 5 and isinstance(one[0], str)
    )


def _added(billed: Billed, one: BilledModel) -> Billed:
    for place, known in enumerate(billed):
        if known[0] == one[0]:
            return (*billed[:place], _sum(known, one), *billed[place + 1 :])
    if len(billed) >= MODELS_MAX and one[0] != OTHERS:
        return _added(billed, (OTHERS, *one[1:]))
    return (*billed, one)


def _sum(known: BilledModel, more: BilledModel) -> BilledModel:
    model, calls, read, written, cached = known
    return (
        model,
        _at_most(calls + more[1]),
        _at_most(read + more[2]),
        _at_most(written + more[3]),
        _at_most(cached + more[4]),
    )


def _count(value: object) -> int:
    # A truth value is no count, though it is an `int`.
    return _at_most(value) if type(value) is int and value >= 0 else 0


def _at_most(count: int) -> int:
    return count if count < _COUNTED_MAX else _COUNTED_MAX
