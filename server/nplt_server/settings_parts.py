"""What settings are made of: values that say what they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Part(BaseModel):
    # A mistake is told by its place and never by its value, which may be a secret. Parts
    # are built with the whole they belong to: each for itself would be twice the time.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )
