"""A refusal of a vendor's API as one row: what is checked, what the vendor says, and where
that can be read.

`message` has the vendor's words, with a `{name}` for what differs from request to request.
`quote` is copied from the page at `source`. Where the page documents the rule without the
words of the refusal, `message` is ours and `is_documented_only` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.vendors.rejections import Rejection

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedRule:
    id: str
    checks: str
    message: str
    status: int = 400
    kind: str = "invalid_request_error"
    code: str | None = None
    source: str
    quote: str
    is_documented_only: bool = False

    def refusal(
        self,
        *,
        param: str | None = None,
        fields: Mapping[str, object] | None = None,
        **words: Any,
    ) -> Rejection:
        return Rejection(
            self.message.format(**words),
            status=self.status,
            kind=self.kind,
            code=self.code,
            param=param,
            fields=fields,
        )

    def at(self, path: Path, **words: Any) -> Rejection:
        """The same behind the place of the fault, as Anthropic says it."""
        refused = self.refusal(**words)
        refused.message = f"{'.'.join(map(str, path))}: {refused.message}"
        return refused

    def quotes_message(self) -> bool:
        """Whether the quote has the message's words."""
        parts = re.split(r"\{\w+\}", self.message)
        literal = [re.escape(part.replace("{{", "{").replace("}}", "}")) for part in parts]
        words = ".*?".join(literal).removeprefix(r".*?\ ")
        return re.search(words, self.quote.replace("\\", "")) is not None


def by_id(*rules: SourcedRule) -> dict[str, SourcedRule]:
    return {rule.id: rule for rule in rules}
