"""Files that go with a prompt: read once, bounded, and shown to models that take them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conversations import conversation_of
from tests.server.services import make_services, model_of

from nplt_protocol import JsonObject
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Prompt
from nplt_server.context.messages import ContextAttachment, ModelInputMessage, ToolResultsMessage
from nplt_server.conversations import attachments_shown
from nplt_server.conversations.attachments_shown import (
    IMAGE_BYTES_MAX,
    TEXT_BYTES_MAX,
    AttachmentReader,
)
from nplt_server.conversations.context_report import context_report
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.redaction import redact
from nplt_server.conversations.services import ContextServices, Services
from nplt_server.providers import (
    LlmRequest,
    ModelCatalog,
    ModelFacts,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.tools import ResultWithPictures, Tool, ToolDescription, ToolHost
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import AttachmentEntry, EpochEntry

MODEL = "test/model"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


class Desk:
    def __init__(self, house: Services, conversation: Conversation) -> None:
        self.services = house
        self.conversation = conversation
        self.requests: list[LlmRequest] = []

    async def upload(self, name: str, data: bytes) -> str:
        async with self.services.files.receive("s1", size=len(data)) as upload:
            await upload.write(data)
            stored = await upload.finish()
        await self.conversation.append_entry(
            AttachmentEntry(
                file_id=stored.file_id,
                filename=name,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )
        return stored.file_id

    async def ask(self, text: str, *file_ids: str) -> ModelInputMessage:
        """What the model was shown of it."""
        prompt = Prompt(text=text, attachments=file_ids)
        await self.conversation.accept(prompt, receipt=lambda receipt: None)
        await self.conversation.activity.quiet()
        shown = self.requests[-1].context[-1]
        assert isinstance(shown, ModelInputMessage)
        return shown


@asynccontextmanager
async def desk(tmp_path: Path, facts: ModelFacts | None = None) -> AsyncIterator[Desk]:
    async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        made.requests.append(request)
        yield TextPiece(text="I see.")
        yield Stopped(reason="end")

    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({MODEL: facts or ModelFacts(takes_images=True)}),
    )
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(answer), context_services=context_services)
        services.files = AttachmentFiles(tmp_path / "files")
        made = Desk(
            services,
            conversation_of(
                "s1", user="local", services=services, profile=services.histories.default
            ),
        )
        yield made
        tasks.cancel_scope.cancel()


async def test_an_attached_text_file_is_shown_in_the_message_under_its_name(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        file_id = await at.upload("notes.md", "# Ünicode\n```py\nx\n```".encode())
        shown = await at.ask("what is this?", file_id)
        assert shown.text == (
            "File notes.md:\n````\n# Ünicode\n```py\nx\n```\n````\n\nwhat is this?"
        )
        assert shown.content == "what is this?"


async def test_a_picture_goes_along_to_a_model_that_takes_pictures(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        shown = await at.ask("what is this?", await at.upload("a.txt", PNG))
        (image,) = shown.images
        assert image.content_type == "image/png", "its first bytes say what it is"
        assert base64.b64decode(image.data_base64 or "") == PNG


@pytest.mark.parametrize("sees", [True, False], ids=["seeing", "blind"])
async def test_a_picture_of_a_tool_is_shown_to_a_model_that_takes_pictures(
    tmp_path: Path, sees: bool
) -> None:
    async def look(arguments: JsonObject, host: ToolHost) -> str:
        text = ResultWithPictures("[image/png, 48 bytes]")
        text.attachments = (await host.keep_file("picture-1.png", "image/png", PNG),)
        return text

    async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        requests.append(request)
        if len(requests) == 1:
            yield ToolCallPiece(index=0, tool_name="look", arguments="{}")
        else:
            yield TextPiece(text="I see.")
        yield Stopped(reason="end")

    requests: list[LlmRequest] = []
    description = ToolDescription(name="look", description="", parameters={"type": "object"})
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({MODEL: ModelFacts(takes_images=sees)}),
    )
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks,
            model_of(answer),
            context_services=context_services,
            tools=(Tool(description=description, run=look),),
        )
        services.files = AttachmentFiles(tmp_path / "files")
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        for text in ("what is there?", "and now?"):
            await conversation.accept(Prompt(text=text), receipt=lambda receipt: None)
            await conversation.activity.quiet()
        tasks.cancel_scope.cancel()
    results = [one for one in requests[1].context if isinstance(one, ToolResultsMessage)]
    assert results[0].texts == ("[image/png, 48 bytes]",)
    shown = [base64.b64decode(image.data_base64 or "") for image in results[0].images]
    assert shown == ([PNG] if sees else [])
    assert requests[2].context[: len(requests[1].context)] == requests[1].context


async def test_a_model_without_vision_gets_the_name_of_the_picture(tmp_path: Path) -> None:
    async with desk(tmp_path, ModelFacts()) as at:
        shown = await at.ask("what is this?", await at.upload("cat.png", PNG))
        assert shown.images == ()
        assert "cat.png" in shown.text
        account = await context_report(
            at.conversation.context, model=MODEL, text=None, bytes_max=100_000
        )
        (shown_text,) = [row["attachments"] for row in account.entries if "attachments" in row]
        assert shown_text == [
            {"filename": "cat.png", "content_type": "image/png", "reason": "attachment_not_taken"}
        ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe\x00binary", "attachment_not_taken"),
        (b"text with a \x00 in it", "attachment_not_taken"),
        (PNG + bytes(IMAGE_BYTES_MAX), "attachment_too_large"),
        ("é".encode() * TEXT_BYTES_MAX, "attachment_cut"),
        (b"", None),
    ],
    ids=["binary", "nul", "large picture", "long text", "empty"],
)
async def test_what_can_t_be_shown_has_a_reason(
    tmp_path: Path, data: bytes, reason: str | None
) -> None:
    async with desk(tmp_path) as at:
        shown = await at.ask("look", await at.upload("file", data))
        assert [one.reason for one in shown.attachments] == [reason]
        assert len(shown.text) <= TEXT_BYTES_MAX + 200


async def test_a_prompt_with_a_missing_file_is_refused_and_an_erased_file_is_not_shown(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as at:
        lost, erased = await at.upload("lost", b"1"), await at.upload("erased", b"secret")
        at.services.files.path_of("s1", lost).unlink()
        with pytest.raises(RequestError, match="the file 'lost' is not on this server"):
            await at.ask("look", lost, erased)
        shown = await at.ask("look", erased)
        assert [one.reason for one in shown.attachments] == [None]
        conversation = at.conversation
        await redact(conversation, 2)
        assert not at.services.files.path_of("s1", erased).exists()
        await at.ask("again")
        shown_text = str([message.text for message in at.requests[-1].context[:1]])  # type: ignore[union-attr]
        assert "secret" not in shown_text


async def test_a_file_uploaded_long_ago_can_still_be_named_and_another_s_can_t(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as at:
        file_id = await at.upload("a", b"here")
        with pytest.raises(RequestError, match="no file"):
            await at.ask("look", "0" * 32)
        with pytest.raises(RequestError, match="at most 32"):
            await at.ask("look", *[file_id] * 33)
        assert "here" in (await at.ask("look", file_id)).text


async def test_what_does_not_fit_the_window_is_named_and_the_question_asked(
    tmp_path: Path,
) -> None:
    small = ModelFacts(context_tokens=4_096, output_tokens=1_024)
    async with desk(tmp_path, small) as at:
        at.conversation.services.on_too_long = "cut"
        shown = await at.ask("what is this?", await at.upload("long.txt", b"word " * 10_000))
        assert "what is this?" in shown.text
        assert [one.reason for one in shown.attachments] == ["attachment_no_room"]


@given(st.text(alphabet="`x\n", max_size=40))
def test_a_fence_is_longer_than_any_in_the_text(text: str) -> None:
    first, *inside, last = ContextAttachment(name="n", text=text).as_text.split("\n")[1:]
    assert first == last == "`" * len(first)
    assert all(first not in line for line in inside)


# More pictures than are sent

LARGE = PNG + bytes(1024 - len(PNG))


@pytest.fixture
def room_for_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_shown, "PICTURES_BYTES_MAX", 4 * len(LARGE))


def pictures_in(request: LlmRequest) -> list[str]:
    """Those that go along, by their names."""
    prompts = [each for each in request.context if isinstance(each, ModelInputMessage)]
    return [image.name for prompt in prompts for image in prompt.images]


def epochs_of(conversation: Conversation) -> list[str]:
    return [each.reason for each in conversation.history.entries if isinstance(each, EpochEntry)]


@pytest.mark.usefixtures("room_for_four")
async def test_of_many_pictures_the_newest_are_shown_and_an_epoch_begins_without_the_others(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as at:
        for name in "abcdefg":
            shown = await at.ask("look", await at.upload(f"{name}.png", LARGE))
            assert [image.name for image in shown.images] == [f"{name}.png"], "always its own"
        shown_text = ["".join(name[0] for name in pictures_in(each)) for each in at.requests]
        assert shown_text == ["a", "ab", "abc", "abcd", "de", "def", "defg"]
        assert epochs_of(at.conversation) == ["pictures"]
        first = at.requests[-1].context[0]
        assert isinstance(first, ModelInputMessage)
        assert first.text == "[File a.png: there are too many pictures]\n\nlook"


@pytest.mark.usefixtures("room_for_four")
async def test_after_a_restart_the_same_pictures_are_shown(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        for name in "abcdef":
            await at.ask("look", await at.upload(f"{name}.png", LARGE))
        before = pictures_in(at.requests[-1])
        reader = AttachmentReader(at.conversation.record, at.services.files)
        await reader.gather()
        known = at.conversation.context.attachments
        assert reader.contents.put_away == known.contents.put_away
        assert not reader.needs_epoch
        await at.ask("and now?")
        assert pictures_in(at.requests[-1]) == before == ["d.png", "e.png", "f.png"]


@pytest.mark.usefixtures("room_for_four")
async def test_more_pictures_than_are_sent_in_one_prompt_are_shown_as_far_as_they_go(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as at:
        await at.ask("look", *[await at.upload(f"{name}.png", LARGE) for name in "abcde"])
        await at.ask("and now?")
        for request in at.requests:
            assert pictures_in(request) == ["a.png", "b.png", "c.png", "d.png"]


@pytest.mark.usefixtures("room_for_four")
async def test_a_picture_sent_again_and_again_counts_every_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        file_id = await at.upload("a.png", LARGE)
        for _ in range(9):
            await at.ask("look", file_id)
        assert max(len(pictures_in(each)) for each in at.requests) == 4
