"""Highlights the code of fenced blocks.

Models choose the language and the code, and a lexer's regular expressions can take long on some
input. So only known languages are highlighted, code beyond a length is not, and the work stops
after a time; the code is then shown without colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.token import _TokenType

LANGUAGES = frozenset({
    "bash", "c", "c++", "console", "cpp", "cs", "csharp", "css", "dart", "diff", "docker",
    "dockerfile", "elixir", "go", "golang", "haskell", "html", "ini", "java", "javascript", "js",
    "json", "jsx", "kotlin", "lua", "make", "makefile", "markdown", "md", "nginx", "objective-c",
    "perl", "php", "powershell", "proto", "py", "py3", "pycon", "pytb", "python",
    "python3", "r", "rb", "rs", "ruby", "rust", "scala", "sh", "shell", "sql", "swift",
    "terraform", "toml", "ts", "tsx", "typescript", "vim", "vue", "xml", "yaml", "yml", "zig",
    "zsh",
})  # fmt: skip
CODE_CHARACTERS_MAX = 20_000
_SECONDS_MAX = 0.1


def highlighted(code: str, language: str) -> str:
    """Returns the escaped code, with a `span` around each token that has a colour. The classes are
    the short names of Pygments."""
    language = language.lower()
    if language not in LANGUAGES or len(code) > CODE_CHARACTERS_MAX:
        return escape(code)
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:  # an older Pygments
        return escape(code)
    try:
        return "".join(_spans(lexer.get_tokens_unprocessed(code)))
    except TimeoutError:
        return escape(code)


def _spans(tokens: Iterator[tuple[int, _TokenType, str]]) -> Iterator[str]:
    from pygments.token import STANDARD_TYPES

    ends_at = monotonic() + _SECONDS_MAX
    for _, kind, text in tokens:
        if monotonic() > ends_at:
            raise TimeoutError
        while kind not in STANDARD_TYPES and kind.parent is not None:
            kind = kind.parent
        name = STANDARD_TYPES.get(kind, "")
        shown = escape(text)
        yield f'<span class="{name}">{shown}</span>' if name and not text.isspace() else shown
