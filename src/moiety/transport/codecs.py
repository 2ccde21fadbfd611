"""Codecs: how an upload is written for the wire."""

from __future__ import annotations

from collections.abc import Callable

from moiety.types import Codec

CODECS: dict[str, Callable[..., Codec]] = {}
