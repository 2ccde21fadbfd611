"""Errors of calls between the processes of a node: which ones pass."""

from __future__ import annotations

from http import HTTPStatus


def is_break(error: Exception) -> bool:
    """Whether an error is that of a line that was closed, not of a certificate."""
    text = str(error).lower()
    return "certificate" not in text and any(word in text for word in ("eof", "reset by peer", "broken pipe"))


def is_unknown_token(error: Exception) -> bool:
    """Whether an error says that a token is not known, or no longer."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) == HTTPStatus.UNAUTHORIZED
