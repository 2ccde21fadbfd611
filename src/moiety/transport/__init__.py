"""What crosses between clients and server, who watches it, and what it costs."""

from moiety.transport.codecs import CODECS
from moiety.transport.guard import (
    PrivacyError,
    check,
    check_layout,
    check_message,
    check_numbers,
    check_result,
    copy_out,
    fits,
)
from moiety.transport.ledger import Ledger, device_memory
from moiety.transport.wire import message_bytes, pack, payload_bytes, unpack, value_bytes

__all__ = [
    "CODECS",
    "Ledger",
    "PrivacyError",
    "check",
    "check_layout",
    "check_message",
    "check_numbers",
    "check_result",
    "copy_out",
    "device_memory",
    "fits",
    "message_bytes",
    "pack",
    "payload_bytes",
    "unpack",
    "value_bytes",
]
