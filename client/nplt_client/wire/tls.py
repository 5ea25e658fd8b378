"""TLS for `nplts://`: trusted authorities, and the errors of a failed handshake.

In a module of its own because `ssl` is slow to load, and most connections do not need it.
"""

from __future__ import annotations

import ssl

from nplt_client.errors import CannotConnect, ConfigurationError
from nplt_client.settings import Address, find_ca_file


def client_context() -> ssl.SSLContext:
    """Trusts the certificate authorities in the user's file, or else the system's."""
    path = find_ca_file()
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ConfigurationError(f"{path} holds no certificate in PEM format") from None
    except OSError as error:
        raise ConfigurationError(
            f"can't read {path}, the file with certificate authorities: {error.strerror or error}"
        ) from None


def handshake_error(address: Address, error: ssl.SSLError) -> CannotConnect:
    where = f"can't connect to {address}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return CannotConnect(f"{where}: {_distrust(error)}")
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"):
        plain = str(address).replace("nplts://", "nplt://", 1)
        return CannotConnect(f"{where}: that port does not speak TLS; try {plain}")
    return CannotConnect(f"{where}: TLS failed: {error.reason or error}")


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message
    if "hostname" in why.lower() or "ip address mismatch" in why.lower():
        return f"its certificate is not for this name: {why}"
    if "expired" in why or "not yet valid" in why:
        return f"its certificate is not valid now: {why}"
    return (
        f"its certificate is signed by no authority that this machine trusts ({why}). If you "
        'know who signed it: --ca FILE, NPLT_CA_FILE, or in client.toml: [tls] ca = "FILE"'
    )
