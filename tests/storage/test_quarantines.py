"""What models are not shown: those of one provider, or all."""

from __future__ import annotations

from tests.storage.conversations import Pen, answer, prompt

from nplt_storage.active_entries import HiddenEntries
from nplt_storage.entries import QuarantineEntry


def pen_with(*quarantines: QuarantineEntry) -> Pen:
    pen = Pen()
    pen.write_all([prompt("t1", "ask"), answer("t1", "say"), *quarantines])
    return pen


def refused(by: str, *, pictures: bool = False) -> QuarantineEntry:
    return QuarantineEntry(
        target_seq=1, code="x", content="x", provider=by, part="pictures" if pictures else ""
    )


def shown_again(to: str = "") -> QuarantineEntry:
    return QuarantineEntry(target_seq=1, code="x", content="x", provider=to, lifted=True)


WHOLE = HiddenEntries(frozenset({1}), frozenset())
PICTURES = HiddenEntries(frozenset(), frozenset({1}))
NOTHING = HiddenEntries()


def test_what_one_provider_refuses_is_hidden_from_that_one() -> None:
    history = pen_with(refused("a")).history
    assert [history.hidden_from(each) for each in ("a", "b", "")] == [WHOLE, NOTHING, WHOLE]


def test_what_two_providers_refuse_is_hidden_from_all() -> None:
    history = pen_with(refused("a"), refused("b")).history
    assert [history.hidden_from(each) for each in ("a", "b", "c")] == [WHOLE] * 3


def test_a_quarantine_without_a_provider_hides_from_all() -> None:
    assert pen_with(refused("")).history.hidden_from("c") == WHOLE


def test_quarantined_pictures_are_hidden_without_the_text_of_their_entry() -> None:
    history = pen_with(refused("a", pictures=True)).history
    assert [history.hidden_from(each) for each in ("a", "b")] == [PICTURES, NOTHING]


def test_an_entry_refused_by_one_and_its_pictures_by_another() -> None:
    history = pen_with(refused("a", pictures=True), refused("b")).history
    found = [history.hidden_from(each) for each in ("a", "b", "c")]
    assert found == [PICTURES, WHOLE, PICTURES]


def test_a_release_is_for_one_provider_or_for_all() -> None:
    history = pen_with(refused("a"), refused("b"), shown_again("b")).history
    assert [history.hidden_from(each) for each in ("a", "b")] == [WHOLE, NOTHING]
    assert pen_with(refused("a"), refused("b"), shown_again()).history.quarantines == {}
