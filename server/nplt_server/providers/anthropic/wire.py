"""JSON as the API has it: nested deeply, and looked into by place. Only this package
knows its shapes."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
