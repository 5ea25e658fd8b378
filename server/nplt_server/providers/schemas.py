"""JSON schemas: of tools' arguments and of answers, as vendors accept them, and the check of
an answer.

MCP servers send schemas that vendors refuse: several shapes at the top, keywords of older
drafts (`required: true`), untyped arrays. What is not accepted is left out or written into
the description, so that one odd tool does not make every request fail.

A schema for an answer comes with a prompt. Where a vendor enforces schemas it is sent in the
form that vendor takes, or not at all; either way the answer is checked here, against the
schema as it was given. The check runs in a process of its own: a schema is a user's program
(patterns, references to itself), and must neither stop the server nor bring it down.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from nplt_protocol import ErrorCode, JsonObject, JsonValue, RequestError
from nplt_protocol.json_text import answer_value, kind

_SHAPES: Final = ("allOf", "anyOf", "oneOf")
_LISTS_OF_SCHEMAS: Final = (*_SHAPES, "prefixItems")
_SCHEMAS: Final = ("contains", "else", "if", "items", "not", "propertyNames", "then")
_SCHEMAS_BY_NAME: Final = ("$defs", "definitions", "patternProperties", "properties")
NOT_AT_THE_TOP: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""Words that OpenAI refuses at the top of a schema, with the whole request."""
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def in_words(parameters: JsonObject) -> str:
    converted = orjson.dumps(parameters).decode()
    return f"The arguments are an object that fits this JSON Schema: {converted}"


def plain_object(parameters: JsonObject) -> JsonObject:
    """An object that takes at least what the schema takes, without the words that OpenAI
    refuses at its top: of several shapes it has the properties of all."""
    plain = {
        word: converted for word, converted in parameters.items() if word not in NOT_AT_THE_TOP
    }
    return {**plain, "type": "object", "properties": dict(_properties(parameters))}


def well_formed(schema: JsonValue) -> JsonObject:
    """Drops whatever is not valid JSON Schema today, and gives each array an `items`, if only
    "anything", because OpenAI requires it."""
    if not isinstance(schema, dict):
        return {}
    converted = {
        word: _with_inner(word, value, well_formed)
        for word, value in schema.items()
        if _is_well(word, value)
    }
    kinds = converted.get("type")
    if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
        converted.setdefault("items", {})
    return converted


def _is_well(word: str, value: JsonValue) -> bool:
    match word:
        case "type":
            kinds = value if isinstance(value, list) else [value]
            return bool(kinds) and all(kind in _TYPES for kind in kinds)
        case "required":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "exclusiveMaximum" | "exclusiveMinimum":
            return not isinstance(value, bool)
        case "items":
            return not isinstance(value, list)
        case "enum":
            return isinstance(value, list) and bool(value)
        case _ if word in _SCHEMAS_BY_NAME:
            return isinstance(value, dict)
        case _ if word in _LISTS_OF_SCHEMAS:
            return isinstance(value, list) and bool(value)
        case _:
            return True


def _with_inner(word: str, value: JsonValue, change: Callable[[JsonValue], JsonValue]) -> JsonValue:
    """Applies `change` to each schema under a keyword, and returns the new value."""
    if word in _SCHEMAS or (word == "additionalProperties" and isinstance(value, dict)):
        return change(value)
    if word in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: change(each) for name, each in value.items()}
    if word in _LISTS_OF_SCHEMAS and isinstance(value, list):
        return [change(each) for each in value]
    return value


def _properties(schema: JsonObject) -> Iterator[tuple[str, JsonValue]]:
    """Yields all properties. Those at the top come last, so they override the others."""
    for word in _SHAPES:
        shapes = schema.get(word)
        for shape in shapes if isinstance(shapes, list) else ():
            if isinstance(shape, dict):
                yield from _properties(shape)
    own = schema.get("properties")
    if isinstance(own, dict):
        yield from own.items()


# ------------------------------------------------------------------------------
# A schema for an answer, and the check
#
# `jsonschema` knows all drafts and says what is wrong in words; it is loaded in the other
# process only. References lead nowhere outside of the schema.

SCHEMA_BYTES_MAX: Final = 32 * 1024
_CHECK_SECONDS_MAX: Final = 5.0
_FAULT_CHARACTERS_MAX: Final = 300
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


async def check_schema(schema: JsonValue) -> None:
    """Raises an error for what can't be the schema of an answer."""
    if not isinstance(schema, dict):
        raise _refused(f"a schema is a JSON object, not {kind(schema)}")
    if (size := len(orjson.dumps(schema))) > SCHEMA_BYTES_MAX:
        raise _refused(
            f"the schema has {size:,} bytes; at most {SCHEMA_BYTES_MAX:,} are taken",
            ErrorCode.TOO_LARGE,
        )
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise _refused(
                f"the schema refers to {reference[:100]!r}; nothing is fetched, so put that part "
                "into the schema itself, under $defs"
            )
    fault = await _in_other_process(schema, None)
    if fault is not None:
        raise _refused(f"this is not a JSON schema: {fault}")


async def fault_of_answer(schema: Mapping[str, JsonValue], answer: str) -> str | None:
    """Why the answer does not fit the schema; `None` if it does."""
    return await _in_other_process(dict(schema), answer)


def _refused(message: str, code: ErrorCode = ErrorCode.MALFORMED) -> RequestError:
    return RequestError(code, message, field="options.schema")


def _references(schema: JsonValue) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        for word, value in schema.items():
            if word in _REFERENCES and isinstance(value, str):
                yield value
            else:
                yield from _references(value)


async def _in_other_process(schema: JsonObject, answer: str | None) -> str | None:
    import anyio
    from anyio.to_process import run_sync

    try:
        return await run_sync(_fault, schema, answer, cancellable=True)
    except anyio.BrokenWorkerProcess:
        return f"it can't be checked within {_CHECK_SECONDS_MAX:g} s; the schema is too complex"


def _fault(schema: JsonObject, answer: str | None) -> str | None:
    """Returns what is wrong with the answer, or with the schema itself. Runs in the child process.
    The time limit is CPU time, however busy the machine is, and its signal ends the process,
    also inside a pattern."""
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    signal.setitimer(signal.ITIMER_VIRTUAL, _CHECK_SECONDS_MAX)
    try:
        kind_of_validator: Any = validator_for(schema, default=Draft202012Validator)
        validator = kind_of_validator(schema, registry=Registry())
        if answer is None:
            kind_of_validator.check_schema(schema, format_checker=kind_of_validator.FORMAT_CHECKER)
            resource = Resource.from_contents(schema, default_specification=DRAFT202012)
            resolver = Registry().resolver_with_root(resource)
            for reference in _references(schema):
                resolver.lookup(reference)
            return None
        error = best_match(validator.iter_errors(answer_value(answer)))
    except SchemaError as wrong:
        error = wrong
    except Unresolvable as wrong:
        return f"there is no {wrong.ref!r} in it"
    except RecursionError:
        return "it refers to itself without end"
    except ValueError as wrong:
        return str(wrong)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if error is None:
        return None
    fault_text, half = error.message, _FAULT_CHARACTERS_MAX // 2
    if len(fault_text) > _FAULT_CHARACTERS_MAX:
        fault_text = f"{fault_text[:half]} … {fault_text[-half:]}"
    place = "".join(f"/{step}" for step in error.absolute_path)
    return f"{fault_text} (at {place[:100]})" if place else str(fault_text)


# ------------------------------------------------------------------------------
# The schema of an answer, as vendors take it
#
# OpenAI: the top is an object. `strict` holds the model to the schema, if that says of every
# object which properties it has, all of them required and no others, and uses no other words
# than these.
#
# Anthropic: no object may have other properties than those that are named; bounds of numbers
# and lengths are refused, and so is a schema that refers to itself. What only narrows is left
# out; a schema that would mean something else without it is not sent.

_ANNOTATIONS: Final = frozenset({"$comment", "$id", "$schema", "default", "examples"})
_STRICT_WORDS: Final = frozenset(
    {
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "definitions"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_STRICT_LEVELS_MAX: Final = 10
_ANTHROPIC_FORMATS: Final = frozenset(
    {*("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")}
)


def for_openai(schema: Mapping[str, JsonValue]) -> tuple[JsonObject, bool] | None:
    """The schema, and whether it can be strict; `None`: it can't be sent."""
    if schema.get("type") != "object" or not NOT_AT_THE_TOP.isdisjoint(schema):
        return None
    plain = _without_annotations(dict(schema))
    assert isinstance(plain, dict)
    return plain, _is_strict(plain, 1)


def _without_annotations(schema: JsonValue) -> JsonValue:
    if not isinstance(schema, dict):
        return schema
    return {
        word: _with_inner(word, value, _without_annotations)
        for word, value in schema.items()
        if word not in _ANNOTATIONS
    }


def _is_strict(schema: Any, level: int) -> bool:
    if not isinstance(schema, dict) or not _STRICT_WORDS.issuperset(schema):
        return False
    properties: Any = schema.get("properties") or {}
    required: Any = schema.get("required") or []
    kinds = schema.get("type")
    if (
        kinds == "object"
        or "properties" in schema
        or (isinstance(kinds, list) and "object" in kinds)
    ):
        if level > _STRICT_LEVELS_MAX or schema.get("additionalProperties") is not False:
            return False
        if set(required) != set(properties):
            return False
    elif not {"type", "anyOf", "enum", "const", "$ref"} & schema.keys():
        return False
    if kinds == "array" and "items" not in schema:
        return False
    inner: Any = [
        *properties.values(),
        *(schema.get("anyOf") or ()),
        *(each for word in ("$defs", "definitions") for each in (schema.get(word) or {}).values()),
        *([schema["items"]] if "items" in schema else ()),
    ]
    return all(_is_strict(each, level + 1) for each in inner)


def for_anthropic(schema: Mapping[str, JsonValue]) -> JsonObject | None:
    """Returns the schema in the form that Anthropic enforces, which may allow more; `None` if there
    is no such form."""
    try:
        return _for_anthropic(dict(schema), schema, ())
    except ValueError:
        return None


def _for_anthropic(
    schema: Any, root: Mapping[str, JsonValue], within: tuple[str, ...]
) -> JsonObject:
    """Raises `ValueError` for what it can't express. `within`: the references that led here."""

    def inner(part: Any) -> JsonObject:
        return _for_anthropic(part, root, within)

    if not isinstance(schema, dict):
        raise ValueError("true or false is no schema here")
    converted: JsonObject = {}
    for word in ("$defs", "definitions"):
        if isinstance(schema.get(word), dict):
            converted[word] = {name: inner(each) for name, each in schema[word].items()}
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference in within:
            raise ValueError("it refers to itself")  # and so has no end
        _for_anthropic(referred_to(root, reference), root, (*within, reference))
        return {**converted, "$ref": schema["$ref"]}
    converted |= {word: schema[word] for word in ("title", "description") if word in schema}
    if literals := {word: schema[word] for word in ("enum", "const") if word in schema}:
        listed = literals.get("enum")
        plain = [*(listed if isinstance(listed, list) else ()), literals.get("const")]
        if any(isinstance(each, list | dict) for each in plain):
            raise ValueError("only plain values can be listed")
        return converted | literals
    if shapes := schema.get("anyOf") or schema.get("oneOf"):
        return {**converted, "anyOf": [inner(each) for each in shapes]}
    return converted | _typed_for_anthropic(schema, inner)


def _typed_for_anthropic(schema: JsonObject, inner: Callable[[Any], JsonObject]) -> JsonObject:
    if "type" not in schema:
        raise ValueError("any value at all")
    converted: JsonObject = {"type": schema["type"]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "object" in kinds:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise ValueError("an object of any properties")
        if isinstance(schema.get("additionalProperties"), dict) or "patternProperties" in schema:
            raise ValueError("properties of any name")
        if "allOf" in schema or not properties.keys() >= set(map(str, required)):
            raise ValueError("properties that are named elsewhere")
        converted["properties"] = {name: inner(each) for name, each in properties.items()}
        converted["additionalProperties"] = False
        if required:
            converted["required"] = required
    if "array" in kinds:
        if "items" in schema:
            converted["items"] = inner(schema["items"])
        if schema.get("minItems") in (0, 1):
            converted["minItems"] = schema["minItems"]
    if "string" in kinds and schema.get("format") in _ANTHROPIC_FORMATS:
        converted["format"] = schema["format"]
    return converted


def referred_to(root: Mapping[str, JsonValue], reference: str) -> JsonValue:
    """The part of the schema that a local reference points to."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or step not in found:
            raise ValueError(f"there is no {reference}")
        found = found[step]
    return dict(found) if isinstance(found, Mapping) else found
