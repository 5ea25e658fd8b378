"""The TLS context of the listening sockets, and the certificate in it."""

from __future__ import annotations

import ssl

from nplt_server.errors import ConfigurationError
from nplt_server.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Raises `ConfigurationError` if the certificate can't be loaded."""
    if settings.listen.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Uses the certificate of the settings for new connections."""
    tls = settings.listen.tls
    assert tls is not None
    try:
        context.load_cert_chain(str(tls.cert), str(tls.key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError([f"listen.tls: can't load the certificate: {error}"]) from None
