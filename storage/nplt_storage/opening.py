"""Opens a store from its configuration.

    type: json                      files below the data directory (the default)
    type: memory                    nothing on disk
    type: redis                     needs `url`; redis://, rediss://, unix://, redis+sentinel://
                                    or redis+cluster://
    type: package.module:Class      your own

Your class has the three methods of `history_backend`, and is made with its settings as one
mapping. Or it is a whole store, with a class method `async def open(cls, options, context)`
that gets the options as they were written; `nplt_storage.testing` has the conformance rules.

Every other option is checked here, so that a misspelled one is an error that names the
probable one. A backend is imported when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert, field

from nplt_storage.errors import StorageError
from nplt_storage.messages import LevelMaker, no_levels
from nplt_storage.store import ConversationStore

Options: TypeAlias = Mapping[str, Any]
_QUOTED: Final = re.compile(r"'\w+'")


class BadStoreConfig(StorageError):
    """Concerns the operator: the configuration names something that does not exist or makes no
    sense."""


class StoreConfig(Struct, frozen=True, kw_only=True):
    type: str = "json"
    options: Options = field(default_factory=dict)


class StoreContext(Struct, frozen=True, kw_only=True):
    """The services and settings that a store gets from the program that opens it."""

    data_dir: Path
    clock: Callable[[], datetime]
    system_message: str | None = None
    """The instruction of its conversations, for a store that can't keep one."""
    advertise: str | None = None
    """The address at which other servers reach this one, for stores that several share."""
    levels: LevelMaker = no_levels
    """Shortens messages that a page shows with less detail than is recorded."""
    is_server: bool = False
    """Whether conversations will be written. If so, a store that may lose them is refused."""
    waits: bool = False
    """Whether to wait for a store that is away, as long as its configuration says."""
    has_users: bool = False
    """Whether the server has users. If so, a conversation without a known owner belongs to no
    user."""


async def open_store(
    config: StoreConfig,
    *,
    data_dir: Path,
    clock: Callable[[], datetime],
    system_message: str | None = None,
    advertise: str | None = None,
) -> ConversationStore:
    context = StoreContext(
        data_dir=data_dir, clock=clock, system_message=system_message, advertise=advertise
    )
    return await open_store_in(context, config)


async def open_store_in(context: StoreContext, config: StoreConfig) -> ConversationStore:
    if ":" in config.type:
        return await _open_own(config, context)
    backend, options = _checked(config)
    return await backend.open(options, context)


def check_config(config: StoreConfig) -> None:
    """Checks what can be checked without opening anything; raises `BadStoreConfig`."""
    if ":" in config.type:
        _find_class(config.type)
    else:
        _checked(config)


# What an option may be

_COUNT: Final = (Annotated[int, Meta(ge=1)], "is a whole number above 0")
_SECONDS: Final = (Annotated[float, Meta(gt=0)], "is a number of seconds above 0")
_TEXT: Final = (Annotated[str, Meta(min_length=1)], "is text")
_OPTIONS: Final[Mapping[str, tuple[Any, str]]] = {
    "durability": (Literal["always", "interval", "never"], "is always, interval or never"),
    "interval_seconds": _SECONDS,
    "max_turns": _COUNT,
    "free_bytes_min": _COUNT,
    "url": _TEXT,
    "key_prefix": _TEXT,
    "ttl": _COUNT,
    "lease": _SECONDS,
    "wait": (Annotated[float, Meta(ge=0)], "is a number of seconds"),
}


def _check_url(url: str) -> None:
    from nplt_storage.redis.address import read_address

    address = read_address(url)
    try:
        from redis import ConnectionPool
    except ImportError:
        return  # `_checked` reports the missing package
    try:
        for each in address.urls:
            pool = ConnectionPool.from_url(each)
            pool.connection_class(**pool.connection_kwargs)  # connects to nothing yet
    except TypeError as error:
        unknown = _QUOTED.search(str(error))
        what = f"the option {unknown[0]}" if unknown else "an option"
        raise ValueError(f"has {what}, which the Redis client does not know") from None
    except Exception as error:  # the client has many ways to say no
        raise ValueError(f"can't be read: {error}") from None


def _checked_option(name: str, value: object) -> object:
    """Raises `ValueError` with the values that are allowed."""
    declared, meaning = _OPTIONS[name]
    try:
        value = convert(value, declared)
    except ValidationError:
        raise ValueError(meaning) from None
    if name == "url":
        _check_url(str(value))
    if name == "key_prefix" and "{}" in str(value):
        raise ValueError("can't have {}: a cluster could not keep a conversation in one place")
    return value


# The built-in backends


async def _open_memory(options: Options, context: StoreContext) -> ConversationStore:
    from nplt_storage.memory import MemoryStore

    return MemoryStore(context.clock, max_turns=options.get("max_turns"), levels=context.levels)


async def _open_files(options: Options, context: StoreContext) -> ConversationStore:
    from nplt_storage.files.append import Durability
    from nplt_storage.files.directory import FREE_BYTES_MIN, FileSettings
    from nplt_storage.files.format import LOCAL_USER
    from nplt_storage.files.store import JsonFileStore
    from nplt_storage.rows import UNKNOWN_USER

    settings = FileSettings(
        durability=Durability(
            mode=options.get("durability", "always"),
            interval_seconds=options.get("interval_seconds", 1.0),
        ),
        turns_max=options.get("max_turns"),
        free_bytes_min=options.get("free_bytes_min", FREE_BYTES_MIN),
        unknown_user=UNKNOWN_USER if context.has_users else LOCAL_USER,
    )
    return await JsonFileStore.open_directory(
        context.data_dir, clock=context.clock, settings=settings, levels=context.levels
    )


async def _open_redis(options: Options, context: StoreContext) -> ConversationStore:
    from nplt_storage.redis.ownership import LEASE_SECONDS
    from nplt_storage.redis.store import WAIT_SECONDS, RedisStore

    return await RedisStore.open_url(
        options["url"],
        clock=context.clock,
        key_prefix=options.get("key_prefix", "nplt:"),
        ttl_seconds=options.get("ttl"),
        max_turns=options.get("max_turns"),
        lease_seconds=options.get("lease", LEASE_SECONDS),
        wait_seconds=options.get("wait", WAIT_SECONDS) if context.waits else 0.0,
        advertise=context.advertise,
        is_server=context.is_server,
        levels=context.levels,
        scratch=context.data_dir,
    )


class _Backend(Struct, frozen=True, kw_only=True):
    open: Callable[[Options, StoreContext], Awaitable[ConversationStore]]
    options: tuple[str, ...]
    needed: tuple[str, ...] = ()
    package: str | None = None
    """The package it imports; the extra of the same name installs it."""


_BACKENDS: dict[str, _Backend] = {
    "json": _Backend(
        open=_open_files,
        options=("durability", "interval_seconds", "max_turns", "free_bytes_min"),
    ),
    "memory": _Backend(open=_open_memory, options=("max_turns",)),
    "redis": _Backend(
        open=_open_redis,
        options=("url", "key_prefix", "ttl", "max_turns", "lease", "wait"),
        needed=("url",),
        package="redis",
    ),
}


def _checked(config: StoreConfig) -> tuple[_Backend, Options]:
    """The backend and its options; `None` counts as not given."""
    backend = _BACKENDS.get(config.type)
    if backend is None:
        raise BadStoreConfig(
            f"there is no store of type {config.type!r}{_meant(config.type, _BACKENDS)}; "
            f"there are {', '.join(_BACKENDS)}, and package.module:Class for one of your own"
        )
    if backend.package is not None and find_spec(backend.package) is None:
        raise BadStoreConfig(
            f"a {config.type} store needs a package that is not installed: "
            f"pip install 'nplt[{backend.package}]'"
        )
    checked: dict[str, object] = {}
    for name, value in config.options.items():
        if name not in backend.options:
            raise BadStoreConfig(
                f"a {config.type} store has no option {name!r}{_meant(name, backend.options)}; "
                f"it has {', '.join(backend.options)}"
            )
        if value is not None:
            try:
                checked[name] = _checked_option(name, value)
            except ValueError as error:
                raise BadStoreConfig(f"{name} of a {config.type} store {error}") from None
    for name in backend.needed:
        if name not in checked:
            raise BadStoreConfig(f"a {config.type} store needs {name}")
    return backend, checked


def _meant(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only for mistakes

    nearest = get_close_matches(name, list(known), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


async def _open_own(config: StoreConfig, context: StoreContext) -> ConversationStore:
    own_class = _find_class(config.type)
    try:
        if not hasattr(own_class, "open"):
            from nplt_storage.history_backend import HistoryBackendStore, make_backend

            backend = make_backend(own_class, {"type": config.type, **config.options})
            return HistoryBackendStore(
                backend, config.type, context.clock, context.system_message, levels=context.levels
            )
        store: ConversationStore = await own_class.open(config.options, context)
        return store
    except (StorageError, OSError):
        raise  # these say what is the matter
    except Exception as error:
        raise BadStoreConfig(
            f"the store {config.type!r} can't be opened: {type(error).__name__}: {error}"
        ) from error


def _find_class(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise BadStoreConfig(f"{path!r} is not of the form package.module:Class")
    try:
        module = import_module(module_name)
    except Exception as error:  # it is the operator's own code: anything can happen in it
        reason = str(error) if isinstance(error, ImportError | SyntaxError) else repr(error)
        raise BadStoreConfig(f"the store {path!r} can't be imported: {reason}") from error
    own_class = getattr(module, class_name, None)
    if own_class is None:
        raise BadStoreConfig(
            f"there is no {class_name!r} in {module_name}{_meant(class_name, vars(module))}"
        )
    if callable(getattr(own_class, "open", None)):
        return own_class
    from nplt_storage.history_backend import METHODS, why_not_a_backend

    if (wrong := why_not_a_backend(own_class)) is not None:
        raise BadStoreConfig(
            f"{path!r} {wrong}; a history backend has the methods {', '.join(METHODS)}, "
            "or `open(options, context)` of a whole store"
        )
    return own_class
