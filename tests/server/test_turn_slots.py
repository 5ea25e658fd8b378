"""Turn slots that servers share: asked of the store, and counted here while it can't be asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import anyio
import pytest

from nplt_server.tasks import TurnSlots
from nplt_storage.errors import ConversationHeld, StorageUnavailable
from nplt_storage.store import MemberNote, SharedCounts, SharedView

pytestmark = pytest.mark.anyio
SECONDS_MAX = 30.0


class SharedSlots:
    """A store of which another server holds all slots of bob."""

    server_id = "one"
    counts = SharedCounts()

    def __init__(self) -> None:
        self.is_down = False
        self.taken: list[str] = []

    view = SharedView(members=())

    async def join(self, note: MemberNote) -> None: ...

    async def compare(self, note: MemberNote) -> None: ...

    def is_usable(self, session_id: str) -> bool:
        return True

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def agreed_key(self, offered: bytes) -> bytes:
        return offered

    async def ask_for(self, held: ConversationHeld) -> None: ...

    async def take_turn(self, user: str, turn_id: str, turns_max: int) -> bool:
        if self.is_down:
            raise StorageUnavailable("Redis does not answer")
        if user == "bob":
            return False
        self.taken.append(turn_id)
        return True

    def end_turn(self, user: str, turn_id: str) -> None:
        if turn_id in self.taken:
            self.taken.remove(turn_id)

    async def count_prompt(self, user: str, per_minute: float) -> float:
        return per_minute

    async def note_redacted_prompts(
        self, user: str, message_ids: Sequence[str], kept: int
    ) -> None: ...

    async def redacted_prompts(self, user: str) -> Sequence[str]:
        return ()


@pytest.fixture
def shared() -> SharedSlots:
    return SharedSlots()


@pytest.fixture
def slots(shared: SharedSlots) -> TurnSlots:
    return TurnSlots(turns_max=2, per_user_max=1, shared=shared)


async def test_a_turn_slot_is_taken_from_the_shared_store_and_released(
    slots: TurnSlots, shared: SharedSlots
) -> None:
    assert not slots.take_now("ada"), "the other servers must be asked first"
    with anyio.fail_after(SECONDS_MAX):
        await slots.take("ada", "t1")
    assert shared.taken == ["t1"]
    slots.give_back("ada", "t1")
    assert shared.taken == []


async def test_a_turn_that_waits_for_a_shared_slot_blocks_no_other_user(slots: TurnSlots) -> None:
    async with anyio.create_task_group() as tasks:
        for turn_id in ("t1", "t2", "t3"):
            tasks.start_soon(slots.take, "bob", turn_id)
        with anyio.fail_after(SECONDS_MAX):
            await slots.take("ada", "t4")
            await slots.take("eve", "t5")
        tasks.cancel_scope.cancel()


async def test_without_the_shared_store_turn_slots_are_counted_locally(
    slots: TurnSlots, shared: SharedSlots
) -> None:
    shared.is_down = True
    with anyio.fail_after(SECONDS_MAX):
        await slots.take("bob", "t1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slots.take, "bob", "t2")
            await anyio.lowlevel.checkpoint()
            slots.give_back("bob", "t1")


async def test_a_turn_that_waits_for_a_slot_is_given_the_name_of_the_setting() -> None:
    slots, reasons = TurnSlots(turns_max=2, per_user_max=1), list[str]()
    assert slots.take_now("ada")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(slots.take, "ada", "t2", on_wait=reasons.append))
        await anyio.lowlevel.checkpoint()
        assert slots.waiting(["ada", "bob"]) == {"limits.turns_per_user_max": 1}
        assert slots.take_now("bob")
        slots.give_back("ada", "t1")
    assert reasons == ["1 turn of ada runs already (limits.turns_per_user_max)"]
    assert slots.waiting(["ada", "bob"]) == {}
