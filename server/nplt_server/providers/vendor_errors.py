"""Reads a vendor's error: its code, its parameter, its sentence, the model's window.

Keys and text of the prompt are removed before any of it is shown.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, structs

from nplt_server.digest.text import clean_text
from nplt_server.errors import VendorWords
from nplt_server.providers.sse import text_of


class VendorError(Struct, frozen=True, kw_only=True):
    """The body of an error, as it came: it is not to be shown before `words` has cleaned it.

    OpenAI and Anthropic write `{"error": {"type", "code", "param", "message"}}`. Gemini puts that
    into a list, LiteLLM and vLLM write the status as the code, FastAPI says `detail`."""

    kind: str = ""
    code: str = ""
    param: str = ""
    message: str = ""
    status: int | None = None
    """The code, if it is a number, as routers to other servers write it."""
    page: str | None = None
    """The title of a web page that came instead; empty if it has none."""

    @classmethod
    def of_body(cls, body: bytes) -> VendorError:
        try:
            return cls.of(orjson.loads(body))
        except orjson.JSONDecodeError:
            start = body[:_WORDS_CHARACTERS_MAX].decode(errors="replace").lstrip("\ufeff \r\n\t")
            return cls(page=_title_of(start)) if start.startswith("<") else cls(message=start)

    @classmethod
    def of(cls, body: Any) -> VendorError:
        if isinstance(body, list):
            body = body[0] if body else None
        if not isinstance(body, dict):
            return cls()
        error = body.get("error") or body
        if isinstance(error, str):
            return cls(message=_words_of(error))
        if not isinstance(error, dict):
            return cls()
        details, code = error.get("details"), error.get("code")
        coded = details.get("error_code") if isinstance(details, dict) else None
        return cls(
            kind=_words_of(error.get("type")) or _words_of(error.get("status")),
            code=_words_of(code) or _words_of(coded),
            param=_words_of(error.get("param")),
            message=_message_of(error.get("message") or error.get("detail")),
            status=code if isinstance(code, int) else None,
        )

    def words(self) -> VendorWords | None:
        vendor_text = VendorWords(
            code=self._name(self.code if not self.code.isdecimal() else "")
            or self._name(self.kind),
            param=self._name(self.param),
            message=_shown(self.message),
        )
        return vendor_text if vendor_text != VendorWords() else None

    @staticmethod
    def _name(name: str) -> str:
        return name if _NAME.fullmatch(name) and not _KEYS.search(name) else ""


def _words_of(value: object) -> str:
    """The beginning of a text of an error. No more is looked through for what it says: some
    expressions take time that grows with the square of its length."""
    return text_of(value)[:_WORDS_CHARACTERS_MAX]


def _message_of(value: object) -> str:
    """The sentence, or those of a list of errors as pydantic writes it (Mistral, vLLM, FastAPI):
    `body.stream_options: Extra inputs are not permitted`."""
    if isinstance(value, dict):
        value = value.get("detail")
    if not isinstance(value, list):
        return _words_of(value)
    sentences = []
    for each in value[:_SENTENCES_MAX]:
        if isinstance(each, dict):
            place = each.get("loc")
            path = ".".join(map(str, place)) if isinstance(place, list) else ""
            sentences.append(f"{path}: {each.get('msg')}")
    return _words_of("; ".join(sentences))


_TITLE: Final = re.compile(r"(?is)<title[^>]*>([^<]{1,200})")


def _title_of(page: str) -> str:
    found = _TITLE.search(page)
    return _shown(html.unescape(found[1])) if found is not None else ""


_NAME: Final = re.compile(r"[\w.\[\]:/-]{1,80}")
_WORDS_CHARACTERS_MAX: Final = 4_096
_SENTENCES_MAX: Final = 20
_SENTENCE_CHARACTERS_MAX: Final = 300
_HIDDEN: Final = "…"
_KEYS: Final = re.compile(
    r"(?i)\b(?:bearer|basic)\s+\S+"
    r"|\b(?:sk|pk|rk|gsk|xai|hf|nvapi|key)[-_][^\s'\"`,;]+|\bAIza[\w-]+"
    r"|(?<![\w-])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{24,}(?![\w-])"
)
_QUOTED: Final = re.compile(r"(?<!\w)'([^']+)'|\"([^\"]+)\"|`([^`]+)`|«([^»]+)»|“([^”]+)”")
_RUN_WORDS_MIN: Final = 4
_RUN_CHARACTERS_MIN: Final = 24
"""Fewer words, and shorter ones, are as likely the vendor's own."""
_MESSAGES: Final = ("messages", "input", "system", "instructions")


def _shown(message: str) -> str:
    plain = "".join(each if each.isprintable() else " " for each in clean_text(message))
    vendor_text = " ".join(_KEYS.sub(_HIDDEN, plain).split())
    return (
        vendor_text
        if len(vendor_text) <= _SENTENCE_CHARACTERS_MAX
        else vendor_text[:_SENTENCE_CHARACTERS_MAX] + "…"
    )


def without_prompt(words: VendorWords, body: Mapping[str, Any], key: str) -> VendorWords:
    """Hides the key, and what the sentence repeats of the messages of the request: in quotes,
    unless it is a name the request has elsewhere (a field, an option, a tool), or several
    words in a row."""
    vendor_text = "\n".join(
        " ".join(text.split()) for name in _MESSAGES for text in _texts(body.get(name))
    )
    named = json.dumps(
        {name: "" if name in _MESSAGES else body[name] for name in body}, default=str
    )

    def unless_known(found: re.Match[str]) -> str:
        quoted = next(filter(None, found.groups()))
        is_hidden = quoted in vendor_text and json.dumps(quoted) not in named
        return found[0].replace(quoted, _HIDDEN) if is_hidden else found[0]

    shown = {
        name: value.replace(key, _HIDDEN) if key else value
        for name, value in structs.asdict(words).items()
    }
    sentence = _QUOTED.sub(unless_known, shown.pop("message"))
    return VendorWords(**shown, message=_without_runs(sentence, vendor_text))


def _without_runs(sentence: str, vendor_text: str) -> str:
    words, kept, place = sentence.split(" "), [], 0
    while place < len(words):
        end = place
        while end < len(words) and " ".join(words[place : end + 1]) in vendor_text:
            end += 1
        run = " ".join(words[place:end])
        if end - place >= _RUN_WORDS_MIN or len(run) >= _RUN_CHARACTERS_MIN:
            kept.append(_HIDDEN)
            place = end
        else:
            kept.append(words[place])
            place += 1
    return " ".join(kept)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for name, each in value.items():
                if name not in ("role", "type", "id", "call_id", "tool_call_id", "name"):
                    yield from _texts(each)
        case _:
            pass


WINDOW_TOKENS_MIN: Final = 256
"""A smaller number is not the size of a window."""
_TOKENS: Final = r"(\d{1,3}(?:,\d{3})+|\d+)"
WINDOW_SAYINGS: Final = tuple(
    re.compile(saying.replace("N", _TOKENS), re.IGNORECASE)
    for saying in (
        # OpenAI, vLLM, SGLang, OpenRouter; llama.cpp; Mistral
        r"maximum context length (?:is|of) N\b",
        r"context (?:size|window|length) (?:is |of )?\(?N\b",
        r"with N maximum context length",
        # Anthropic: the prompt alone, or with the room for the answer
        r"\d+ tokens > N maximum",
        r"exceed context limit: \d+ \+ \d+ > N\b",
        # Gemini
        r"maximum number of tokens allowed \(?N\b",
        # OpenAI and Groq, of an account
        r"tokens per min\w* \(TPM\): limit:? N\b",
    )
)


def window_named(words: str) -> int | None:
    """The size of the window, for context and answer together, if the text of a refusal names
    it. Limits of tokens per minute count as windows too: a larger request is never accepted."""
    for saying in WINDOW_SAYINGS:
        found = saying.search(words)
        if found is not None:
            tokens = int(found[1].replace(",", "")[:12])
            return tokens if tokens >= WINDOW_TOKENS_MIN else None
    return None


SENT_SAYINGS: Final = tuple(
    re.compile(saying.replace("N", _TOKENS), re.IGNORECASE)
    for saying in (
        # vLLM: "you requested 5000 tokens (4000 in the messages, 1000 in the completion)"
        r"\(N (?:tokens )?in the (?:messages|prompt)",
        # OpenAI; vLLM: "(8192 > 4096 - 40)" counts the answer too, "has 40 input tokens" does not
        r"messages resulted in N tokens",
        r"has N input tokens",
        # OpenAI, responses; OpenRouter: "(4000 of text input, 100 of tool input, …)"
        r"input (?:token count )?\(?N\)? (?:tokens|exceeds)",
        r"\(N of text input",
        # llama.cpp; Mistral; Anthropic, alone and with the room for the answer; Gemini
        r"request \(N tokens\) exceeds",
        r"prompt contains N tokens",
        r"prompt is too long: N tokens >",
        r"exceed context limit: N \+ \d+ >",
        r"input token count \(?N\)? exceeds",
    )
)


def sent_tokens_named(words: str) -> int | None:
    """The tokens of the context that was sent, without the answer, if a refusal names them."""
    for saying in SENT_SAYINGS:
        found = saying.search(words)
        if found is not None:
            return int(found[1].replace(",", "")[:12])
    return None
