"""Where a provider is: on this machine, or somewhere else."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_on_this_machine(base_url: str) -> bool:
    """Then no proxy is asked the way, though the environment may name one for all else."""
    host = urlsplit(base_url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
