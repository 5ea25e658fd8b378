"""The limits of a connection. Units and bounds stand last in each name."""

from __future__ import annotations

from msgspec import Struct

FRAME_PAYLOAD_BYTES_MAX = 65_535
"""The length field has 16 bits."""


class WireLimits(Struct, frozen=True, kw_only=True):
    frame_bytes_max: int = FRAME_PAYLOAD_BYTES_MAX
    message_bytes_max: int = 1024 * 1024
    json_depth_max: int = 32
    json_keys_max: int = 1_000
    message_seconds_max: float = 10.0
    event_bytes_max: int = 512 * 1024
    write_seconds_max: float = 10.0
