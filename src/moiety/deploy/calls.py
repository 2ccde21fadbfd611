"""Errors of calls between Flower's processes: which ones pass, and for how long a call is made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

PATIENCE = 120.0
"""Seconds for which a call is made again while a SuperLink answers that it has trouble of its own."""
QUIET = 60.0
"""Seconds without such an answer after which the trouble is over, and the next one is new."""
STORE_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0)
"""Seconds before a part of a message is handed over again."""


def is_break(error: Exception) -> bool:
    """Whether an error is that of a line that was closed, not of a certificate."""
    text = str(error).lower()
    return "certificate" not in text and any(word in text for word in ("eof", "reset by peer", "broken pipe"))


def is_unknown_token(error: Exception) -> bool:
    """Whether an error says that a token is not known, or no longer."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) == HTTPStatus.UNAUTHORIZED


def is_trouble(error: Exception) -> bool:
    """Whether an error is a SuperLink's own (status 500 and above), such as a database that was locked."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", 0) >= HTTPStatus.INTERNAL_SERVER_ERROR


class Patience:
    """Bears the trouble of a SuperLink for a while.

    Flower's own processes call again where a proxy in front of the SuperLink is away (502, 503, 504), but not after an
    error 500: what they were about to do is lost, or the process ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.first = self.last = -QUIET

    def bears(self, error: Exception) -> bool:
        """Whether the call that failed should be made again."""
        if not is_trouble(error):
            return False
        now = self.clock()
        if now - self.last >= QUIET:
            self.first = now
        self.last = now
        return now - self.first < PATIENCE

    def soften(self, rule: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
        """A rule for giving up that does so later."""
        return lambda error: not self.bears(error) and rule(error)


def store_patiently(store: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Hand a part of a message over again where the SuperLink answers that it did not store it.

    It answers so, and not with an error, where its database was locked just then.
    """

    def store_part(request: Any) -> Any:
        for pause in STORE_PAUSES:
            answer = store(request)
            if answer.stored:
                return answer
            time.sleep(pause)
        return store(request)

    return store_part
