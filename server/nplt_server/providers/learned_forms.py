"""The forms of requests that were learned from refusals, for each model.

What was learned holds for a week, because servers change, and only for the address where it was
learned. It is kept in a small file over restarts; a file that can't be read counts as empty.
Workers share the file: each adds what it learns, and takes over what the others wrote.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import anyio.to_thread
import msgspec
from msgspec import Struct

from nplt_protocol import JsonObject
from nplt_server.request_form import RequestForm

log = logging.getLogger(__name__)

LEARNED_FOR: Final = timedelta(days=7)
_MODELS_MAX: Final = 500
_NOTHING: Final = RequestForm()


class LearnedForm(Struct, frozen=True, kw_only=True):
    address: str
    form: RequestForm
    """Holds only what differs from the form that the settings and the vendor's preset give."""
    at: datetime


class LearnedForms:
    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._clock = clock
        self._writing = anyio.Lock()
        self._forms: _Forms = {} if path is None else _read(path)

    def of(self, name: str) -> RequestForm | None:
        """Returns what was learned for `provider/model`, as long as it holds."""
        known = self._forms.get(name)
        if known is None:
            return None
        if self._clock() - known.at > LEARNED_FOR:
            del self._forms[name]
            return None
        return known.form

    def at(self, name: str, address: str) -> RequestForm:
        """Returns what was learned for the model, and forgets what another address taught."""
        known = self._forms.get(name)
        if known is not None and known.address != address:
            del self._forms[name]
        return self.of(name) or _NOTHING

    async def learn(self, name: str, address: str, change: RequestForm) -> None:
        """Adds to what is known of the model, and has it on disk before it returns."""
        form = self.at(name, address).changed(change)
        if form == self.of(name) or form == _NOTHING:
            return
        learned = LearnedForm(address=address, form=form, at=self._clock())
        self._forms = _joined(self._forms, {name: learned})
        log.info("%s takes requests in another form: %s", name, form.in_words())
        if self._path is not None:
            async with self._writing:
                written = await anyio.to_thread.run_sync(_write, self._path, {**self._forms})
                self._forms = _joined(self._forms, written)

    def as_json(self) -> JsonObject:
        """Returns for each model what is different, in words, and when it was learned."""
        names = [name for name in sorted(self._forms) if self.of(name) is not None]
        known = {name: self._forms[name] for name in names}
        return {
            name: {"form": one.form.in_words(), "at": one.at.isoformat(timespec="seconds")}
            for name, one in known.items()
        }


_Forms: TypeAlias = dict[str, LearnedForm]


def _read(path: Path) -> _Forms:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Forms)
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}


def _joined(some: _Forms, others: _Forms) -> _Forms:
    """The newer form of each model, and of too many models the newest."""
    forms = {**some}
    for name, each in others.items():
        if name not in forms or forms[name].at <= each.at:
            forms[name] = each
    newest = sorted(forms, key=lambda name: forms[name].at)[-_MODELS_MAX:]
    return {name: forms[name] for name in newest}


def _write(path: Path, forms: _Forms) -> _Forms:
    """Adds the forms to those in the file, and returns all of them."""
    draft = path.with_suffix(f".{os.getpid()}.new")
    directory = -1
    try:
        directory = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        forms = _joined(_read(path), forms)
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(forms))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        log.warning("the forms of requests can't be kept in %s: %s", path, error.strerror)
    finally:
        if directory >= 0:
            os.close(directory)
    return forms
