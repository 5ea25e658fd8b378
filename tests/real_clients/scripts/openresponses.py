"""Validates responses and all events of their streams with the types of Open Responses."""

import json
import os
import re
import urllib.request

from openresponses_types import types
from pydantic import BaseModel


def post(fields):
    body = json.dumps({"model": os.environ["MODEL"], **fields}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{os.environ['BASE']}/responses", body, headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def shape_of(event):
    """The type of the events of that name."""
    for shape in vars(types).values():
        if isinstance(shape, type) and issubclass(shape, BaseModel):
            field = shape.model_fields.get("type")
            kinds = getattr(field and field.annotation, "__members__", {})
            if [str(kind) for kind in kinds.values()] == [event["type"]]:
                return shape
    raise LookupError(event["type"])


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CASES = [
    *({"input": text} for text in json.loads(os.environ["TEXTS"])),
    {"input": "!think of it", "instructions": "Be brief.", "metadata": {"a": "b"}},
    {"input": '!tool look {"at": "it"}', "tools": [TOOL], "tool_choice": "auto"},
    {"input": "kept nowhere", "store": False},
]
seen = set()
for case in CASES:
    types.ResponseResource.model_validate_json(post(case))
    if case["input"].startswith("turn"):
        continue
    for data in re.findall(r"^data: (.*)$", post({**case, "stream": True}), re.M):
        event = json.loads(data)
        shape_of(event).model_validate(event)
        seen.add(event["type"])
assert {"response.completed", "response.function_call_arguments.done"} <= seen, seen
