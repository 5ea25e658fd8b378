"""Whatever a provider does, it does to its own call and to nothing else.

Its bugs end a turn, not the server: also a cancellation nobody here asked for (a
library may leak one of its own) and an attempt to leave the process. What it says
in an exception is never logged: a key may be in it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from nplt_server.errors import ProviderError, ProviderRefused

log = logging.getLogger(__name__)


@contextmanager
def guarded(provider_id: str) -> Iterator[None]:
    try:
        yield
    except ProviderError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.error("provider %s cancelled itself", provider_id)
        raise ProviderRefused("the provider failed: it cancelled itself") from None
    except (Exception, SystemExit) as error:
        name = type(error).__name__
        where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        log.error("provider %s failed: %s\n%s", provider_id, name, where)
        raise ProviderRefused(f"the provider failed: {name}") from None
