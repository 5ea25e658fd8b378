"""`nplt server install`: the systemd units of the server.

Two units: a socket, which systemd keeps open, so that a restart refuses no connection, and a
service, which is started by the first connection. For the user's own systemd by default, with
`--system` for that of the machine, under a user of its own and hardened.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from string import Template

from nplt_client.errors import ConfigurationError
from nplt_client.settings import DEFAULT_HOST, default_address

NAME = "nplt"

_HTTP_PORT = 9998
_SOCKETS = f"{NAME}.socket {NAME}-http.socket"
_SOCKET = Template("""\
[Unit]
Description=Port of nplt$what, which keeps conversations with language models

[Socket]
ListenStream=$address
FileDescriptorName=$descriptor
Service=$name.service
Backlog=1024
NoDelay=true

[Install]
WantedBy=sockets.target
""")

_SERVICE = Template("""\
[Unit]
Description=nplt keeps conversations with language models
Requires=$name.socket
Wants=$name-http.socket
After=network.target $name.socket $name-http.socket

[Service]
Type=notify
ExecStart=$python -P -m nplt_server
ExecReload=kill -HUP $$MAINPID
Restart=on-failure
RestartSec=1
WatchdogSec=60
# Running turns get 15 s to finish.
TimeoutStopSec=30
# The server ends the children that it started, MCP servers and local models.
KillMode=mixed
LimitNOFILE=65536
UMask=0077
$more
[Install]
WantedBy=$target
""")

_OF_USER = """\
# Keys: OPENAI_API_KEY=… and the like, one per line; chmod 600 it.
EnvironmentFile=-%E/nplt/environment
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""

# No MemoryDenyWriteExecute: node needs such memory, and many MCP servers are node programs.
_OF_SYSTEM = """\
# Keys: OPENAI_API_KEY=… and the like, one per line; chmod 600 it.
EnvironmentFile=-/etc/nplt/environment
# Settings in /etc/nplt/server.yaml, conversations in /var/lib/nplt.
Environment=XDG_CONFIG_HOME=/etc XDG_DATA_HOME=/var/lib XDG_STATE_HOME=/run
Environment=XDG_CACHE_HOME=/var/cache HOME=/var/lib/nplt
DynamicUser=yes
ConfigurationDirectory=nplt
StateDirectory=nplt
StateDirectoryMode=0700
CacheDirectory=nplt
RuntimeDirectory=nplt
CapabilityBoundingSet=
AmbientCapabilities=
DevicePolicy=closed
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
"""


def unit_folder(*, for_system: bool) -> Path:
    if for_system:
        return Path("/etc/systemd/system")
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "systemd" / "user"


def unit_files(*, for_system: bool) -> dict[Path, str]:
    """The text of each unit, by its path."""
    folder = unit_folder(for_system=for_system)
    address = default_address()
    return {
        folder / f"{NAME}.socket": _SOCKET.substitute(
            name=NAME, what="", descriptor=NAME, address=f"{DEFAULT_HOST}:{address.port}"
        ),
        folder / f"{NAME}-http.socket": _SOCKET.substitute(
            name=NAME, what=" for HTTP", descriptor="http", address=f"{DEFAULT_HOST}:{_HTTP_PORT}"
        ),
        folder / f"{NAME}.service": _SERVICE.substitute(
            name=NAME,
            python=sys.executable,
            more=_OF_SYSTEM if for_system else _OF_USER,
            target="multi-user.target" if for_system else "default.target",
        ),
    }


_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""The folders that `ProtectHome` and `PrivateTmp` hide from the service of the machine."""


def check_visible(*places: str) -> None:
    """Raises `ConfigurationError` if the service of the machine could not read its own program."""
    for place in places:
        if any(Path(place).is_relative_to(folder) for folder in _HIDDEN):
            raise ConfigurationError(
                f"the service of the machine can't read {place}: install nplt outside of home and "
                "temporary folders, for example with python3 -m venv /opt/nplt and "
                "/opt/nplt/bin/pip install, and run /opt/nplt/bin/nplt server install --system"
            )


def install(*, for_system: bool) -> list[str]:
    """Writes the units. Returns the commands that are left for the user to run."""
    if for_system:
        check_visible(sys.prefix, sys.base_prefix, os.path.realpath(__file__))
    for path, text in unit_files(for_system=for_system).items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise ConfigurationError(_refusal("write", path, error, for_system)) from None
    systemctl = "systemctl" if for_system else "systemctl --user"
    commands = [f"{systemctl} daemon-reload", f"{systemctl} enable --now {_SOCKETS}"]
    if not for_system:
        commands.append("loginctl enable-linger  # it also runs while you are logged out")
    return commands


def uninstall(*, for_system: bool) -> list[str]:
    """Removes the units. Returns the commands that are left for the user to run."""
    for path in unit_files(for_system=for_system):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigurationError(_refusal("remove", path, error, for_system)) from None
    systemctl = "systemctl" if for_system else "systemctl --user"
    return [f"{systemctl} stop {_SOCKETS} {NAME}.service", f"{systemctl} daemon-reload"]


def _refusal(what: str, path: Path, error: OSError, for_system: bool) -> str:
    hint = "; --system needs root" if for_system and os.geteuid() != 0 else ""
    return f"can't {what} {path}: {error.strerror or error}{hint}"
