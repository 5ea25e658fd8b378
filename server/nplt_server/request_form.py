"""The form of a request: what one model of one server wants written differently.

`RequestForm()` is how OpenAI writes it. The table of vendors, the settings, and what was learned
from refusals are forms too, and `changed` lays one over the other; what comes out is what the
adapters render. A form never changes the history, only how it is written in a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

TokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
CallIds: TypeAlias = Literal["9 alphanumeric"]
"""The ids of tool calls that a server takes, if not any of up to 40 letters, digits, `-`, `_`."""
Prefill: TypeAlias = Literal["prefix", "repeated prefix"]
"""An answer to go on with may be the last message, with `"prefix": true`. With the second, the
server begins its answer with that message once more."""


class RequestForm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    specification: str | None = None
    """The API it is sent through; `None` for the one that the provider knows to be right."""
    without_tools: bool = False
    """No tools are offered, and earlier calls are written as text."""
    calls_as_text: bool = False
    """Earlier calls and their results are written as text."""
    without_images: bool = False
    plain_content: bool = False
    """The content of a message is a string, never a list of parts: pictures are only named."""
    without_system_role: bool = False
    """The instruction is sent at the beginning of the first prompt."""
    two_roles: bool = False
    """There are only prompts and answers, in turn: the instruction is sent at the beginning of the
    first prompt, and earlier calls and their results are written as text."""
    bridges_results: bool = False
    """Where a prompt follows the results of tools, a short answer is sent between them."""
    prefill: Prefill | None = None
    """How the chat API is sent an answer to go on with; `None`: the model is asked in words."""
    without_prefill: bool = False
    """An answer to go on with is never the last message."""
    call_ids: CallIds | None = None
    tokens_field: TokensField | None = None
    """The field of the chat API that limits the answer; `None` for `max_completion_tokens`."""
    without: tuple[str, ...] = ()
    """Fields of the request that are left out, in alphabetical order."""
    returns_reasoning: bool | None = None
    """Whether models get back their reasoning with their tool calls; `None`: by the name."""
    without_schema: bool = False
    """The vendor is not asked to enforce the schema of the answer. The context tells the model of
    it in any case, and the answer is checked."""

    def changed(self, change: RequestForm | None) -> RequestForm:
        """This form with everything that `change` says."""
        if change is None or change == _NO_CHANGE:
            return self
        said = {
            name: value
            for name, value in structs.asdict(change).items()
            if value is not None and value is not False and value != ()
        }
        if change.returns_reasoning is False:
            said["returns_reasoning"] = False
        if change.without:
            said["without"] = tuple(sorted({*self.without, *change.without}))
        return structs.replace(self, **said)

    @property
    def writes_calls_as_text(self) -> bool:
        """Whether earlier calls are written as text."""
        return self.without_tools or self.calls_as_text or self.two_roles

    @property
    def puts_instruction_first(self) -> bool:
        """Whether the instruction is part of the first prompt."""
        return self.without_system_role or self.two_roles

    def in_words(self) -> str:
        """Names all that is different, for people."""
        return ", ".join(self._differences())

    def _differences(self) -> Iterator[str]:
        for name, words in _WORDS.items():
            if getattr(self, name):
                yield words
        if self.call_ids is not None:
            yield f"ids of calls: {self.call_ids}"
        if self.tokens_field is not None:
            yield self.tokens_field
        if self.without:
            yield f"without {', '.join(self.without)}"
        if self.returns_reasoning is not None:
            yield "with its reasoning" if self.returns_reasoning else "without its reasoning"
        if self.specification is not None:
            yield self.specification


_WORDS: Final = {
    "without_tools": "no tools",
    "calls_as_text": "calls as text",
    "without_images": "no pictures",
    "plain_content": "content as text",
    "without_system_role": "no system role",
    "two_roles": "prompts and answers only",
    "bridges_results": "an answer after results",
    "without_prefill": "no beginnings of answers",
    "without_schema": "no schemas",
}


_NO_CHANGE: Final = RequestForm()
