"""PDFs that go with a prompt: sent as they are, shown as their text, or named with a reason."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.server.services import EventRecorder
from tests.server.test_attachments_in_context import Desk, desk
from tests.support.pdfs import bomb_pdf, encrypted_pdf, endless_pdf, pdf

from nplt_protocol.messages import AgentThought
from nplt_server.conversations import attachments_shown, pdf_text
from nplt_server.conversations.attachments_shown import TEXT_BYTES_MAX
from nplt_server.conversations.pdf_text import PdfText, read_pdf
from nplt_server.providers import ModelFacts

READS_PDFS = ModelFacts(takes_images=True, takes_pdfs=True)


async def text_of(data: bytes) -> PdfText:
    return await read_pdf(data, text_bytes_max=TEXT_BYTES_MAX)


async def test_pdf_text_is_shown_page_by_page_to_a_model_that_takes_no_pdfs(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as at:
        shown = await at.ask("how much?", await at.upload("bill.pdf", pdf("Bill 7", "Total: 12")))
        assert shown.text == (
            "File bill.pdf:\n```\n[page 1]\nBill 7\n\n[page 2]\nTotal: 12\n```\n\nhow much?"
        )
        assert not shown.documents


async def test_pdf_is_sent_as_it_is_to_a_model_that_reads_pdfs(tmp_path: Path) -> None:
    data = pdf("Bill 7")
    async with desk(tmp_path, READS_PDFS) as at:
        shown = await at.ask("how much?", await at.upload("bill.pdf", data))
        (document,) = shown.documents
        assert base64.b64decode(document.pdf_base64 or "") == data
        assert shown.text == "[Document bill.pdf]\n\nhow much?"


@pytest.mark.parametrize(
    ("facts", "data", "notice"),
    [
        (ModelFacts(), pdf(""), "holds no text"),
        (ModelFacts(), encrypted_pdf("secret", "a password"), "is encrypted"),
        (READS_PDFS, encrypted_pdf("secret", "a password"), "is encrypted"),
        (ModelFacts(), b"%PDF-1.7\nnothing of the kind", "could not be read"),
    ],
    ids=["no text", "encrypted", "encrypted, for a model that reads PDFs", "broken"],
)
async def test_a_notice_before_the_call_says_why_the_model_is_not_shown_a_pdf(
    tmp_path: Path, facts: ModelFacts, data: bytes, notice: str
) -> None:
    async with desk(tmp_path, facts) as at:
        notices = Notices(at)
        shown = await at.ask("what is this?", await at.upload("odd.pdf", data))
        [said] = notices.sent
        assert said.startswith("odd.pdf: the model is not shown it:")
        assert notice in said
        assert not shown.documents
        assert shown.text.startswith("[File odd.pdf: ")


class Notices:
    """The notices that were sent of a conversation."""

    def __init__(self, at: Desk) -> None:
        self._events = EventRecorder()
        at.conversation.broadcast.join(self._events)

    @property
    def sent(self) -> list[str]:
        received = (event for event in self._events.received if isinstance(event, AgentThought))
        return [event.content or "" for event in received if event.type == "notice"]


async def test_pdf_without_text_is_sent_to_a_model_that_reads_pdfs(tmp_path: Path) -> None:
    async with desk(tmp_path, READS_PDFS) as at:
        notices = Notices(at)
        shown = await at.ask("what is this?", await at.upload("scan.pdf", pdf("")))
        assert len(shown.documents) == 1
        assert notices.sent == []


async def test_pdf_of_too_many_pages_is_shown_as_its_text(tmp_path: Path) -> None:
    async with desk(tmp_path, READS_PDFS) as at:
        shown = await at.ask("?", await at.upload("book.pdf", pdf(*["a page"] * 101)))
        assert not shown.documents
        assert "[page 101]\na page" in shown.text


async def test_a_pdf_of_much_text_is_cut_with_a_notice(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        notices = Notices(at)
        long = pdf(*["\n".join(["word " * 20] * 40)] * 20)
        shown = await at.ask("?", await at.upload("long.pdf", long))
        assert "[… the rest is left out …]" in shown.text
        assert notices.sent == ["long.pdf: the model is shown only the beginning of its text"]


async def test_pdf_bomb_is_given_up() -> None:
    assert (await text_of(bomb_pdf(400_000_000))).reason == "attachment_too_costly"


async def test_pdf_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_text, "_SECONDS_MAX", 1)
    assert (await text_of(bomb_pdf(60_000_000))).reason == "attachment_too_costly"


async def test_pdf_whose_forms_multiply_without_end_gives_a_bounded_text() -> None:
    found = await text_of(endless_pdf(12))
    assert len(found.text) <= TEXT_BYTES_MAX


async def test_pdf_encrypted_with_an_empty_password_is_read() -> None:
    assert (await text_of(encrypted_pdf("not secret", ""))).text == "not secret"


async def test_missing_library_is_named_to_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "pypdf"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with desk(tmp_path / "desk") as at:
        notices = Notices(at)
        await at.ask("?", await at.upload("bill.pdf", pdf("Bill 7")))
        assert notices.sent == [
            "bill.pdf: the model is not shown it: reading PDFs needs `pip install 'nplt[pdf]'` "
            "on the server"
        ]


async def test_pdf_is_read_once_in_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    async def counted(data: bytes, *, text_bytes_max: int) -> PdfText:
        reads.append(len(data))
        return PdfText(text="Bill 7", pages=1)

    monkeypatch.setattr(attachments_shown, "read_pdf", counted)
    async with desk(tmp_path) as at:
        file_id = await at.upload("bill.pdf", pdf("Bill 7"))
        await at.ask("one", file_id)
        await at.ask("two", file_id)
        await at.ask("three")
        assert len(reads) == 1
