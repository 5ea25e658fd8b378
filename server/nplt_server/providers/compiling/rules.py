"""What vendors differ in, as far as compiling is concerned.

What all of them ask for is not here but always obeyed: ids and names of letters,
digits, `_` and `-`; no blank text; a result for every call. The defaults are the
narrowest that were seen.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRules:
    call_id_characters_max: int = 40
    tool_name_characters_max: int = 64
    text_characters_max: int = 1_048_576
    """Of one text: a prompt, an answer, a result, the arguments of a call."""
