"""A name leads to a model: its own, or that of a role; and behind it stand others."""

from __future__ import annotations

import anyio
import pytest

from nplt_protocol import RequestError
from nplt_server.providers import LlmRequest
from nplt_server.providers.breaker import FAILURES_MAX
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.router import ProviderRouter


class Closable(ScriptedProvider):
    def __init__(self, provider_id: str, *models: str, is_stuck: bool = False) -> None:
        super().__init__(_silence, provider_id=provider_id, models=models)
        self.is_stuck = is_stuck
        self.is_closed = False

    async def aclose(self) -> None:
        if self.is_stuck:
            raise OSError("with a key in its words")
        self.is_closed = True


def _silence(request: LlmRequest) -> str:
    return "…"


def router(**how: object) -> ProviderRouter:
    providers = (Closable("a", "large", "small"), Closable("b", "large"), Closable("c", "large"))
    return ProviderRouter(providers, **how)  # type: ignore[arg-type]


def test_a_model_named_comes_before_one_that_plays_a_role() -> None:
    known = router(roles={"planner": "b/large"})
    assert known.wished(model="a/small", role="planner") == "a/small"
    assert known.wished(model=None, role="planner") == "b/large"
    assert known.wished(model=None, role=None) is None


@pytest.mark.parametrize("model", [None, "a/small"])
def test_an_unknown_role_is_refused_with_the_known_ones(model: str | None) -> None:
    known = router(roles={"planner": "b/large", "reviewer": "a/small"})
    with pytest.raises(RequestError, match="planner, reviewer") as caught:
        known.wished(model=model, role="executor")
    assert (caught.value.code, caught.value.field) == ("not_found", "role")
    assert caught.value.details == {"candidates": ["planner", "reviewer"]}


def test_a_role_where_none_is_set_is_refused_with_a_hint() -> None:
    with pytest.raises(RequestError, match="no role is set"):
        router().wished(model=None, role="planner")


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"default_model": "b/larg"}, "default_model"),
        ({"roles": {"planner": "b/larg"}}, "roles.planner"),
        ({"fallback": ("a/small", "b/larg")}, "fallback"),
    ],
)
def test_an_unknown_model_in_the_settings_is_reported_with_its_key(
    how: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestError, match="did you mean b/large") as caught:
        router(**how)
    assert caught.value.field == field


def test_those_behind_it_are_asked_in_their_order_each_once() -> None:
    known = router(fallback=("b/large", "a/large", "c/large"))
    assert known.instead_of(["a/large"]) == "b/large"
    assert known.instead_of(["a/large", "b/large"]) == "c/large"
    assert known.instead_of(["a/large", "b/large", "c/large"]) is None


def test_a_provider_that_is_down_does_not_stand_in_for_itself() -> None:
    known = router(fallback=("a/small", "b/large"))
    assert known.instead_of(["a/large"]) == "a/small"
    assert known.instead_of(["a/large"], avoid="a") == "b/large"


def test_a_fallback_whose_breaker_is_open_is_passed_over() -> None:
    known = router(fallback=("b/large", "c/large"))
    for _ in range(FAILURES_MAX):
        known.breakers["b"].failed(known.breakers["b"].admit())
    assert known.instead_of(["a/large"]) == "c/large"


async def test_one_that_can_not_be_closed_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, other = Closable("stuck", "m", is_stuck=True), Closable("other", "m")
    await ProviderRouter([stuck, other]).aclose()
    assert other.is_closed
    assert "stuck" in caplog.text
    assert "key" not in caplog.text


async def test_one_that_hangs_takes_the_time_of_no_other() -> None:
    class Hanging(Closable):
        async def aclose(self) -> None:
            await other.closed.wait()
            await anyio.sleep_forever()

    class Telling(Closable):
        closed = anyio.Event()

        async def aclose(self) -> None:
            self.closed.set()

    other = Telling("other", "m")
    with anyio.move_on_after(60) as in_time:
        async with anyio.create_task_group() as stopping:
            stopping.start_soon(ProviderRouter([Hanging("hanging", "m"), other]).aclose)
            await other.closed.wait()
            stopping.cancel_scope.cancel()
    assert not in_time.cancelled_caught
