"""What becomes of one fuzzed case, and how many cases of each class there were."""

from __future__ import annotations

import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from night import NIGHTLY

from moiety.errors import MoietyError

CLEAN, RIGHT, TRACEBACK, HANG, WRONG = "clean line", "accepted and right", "traceback", "hang", "silently wrong"
SECONDS = 60
CASES = 1000 if NIGHTLY else 100
"""For each of the areas: six hundred in the gate, six thousand in ``make nightly``."""
counts: dict[str, Counter[str]] = {}

fuzzed = settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class _TookTooLongError(BaseException):
    """Raised by the alarm; not an ``Exception``, so that nothing takes it for bad input."""


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def classify(area: str, call: Callable[[], Any], is_right: Callable[[Any], bool]) -> None:
    """Count what becomes of ``call``, and fail where it is a traceback, a hang or silently wrong."""
    about: BaseException | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _alarm():
                result = call()
            outcome = RIGHT if is_right(result) else WRONG
        except MoietyError as error:
            about, outcome = error, CLEAN if "\n" not in str(error) else TRACEBACK
        except _TookTooLongError as error:
            about, outcome = error, HANG
        except Exception as error:
            about, outcome = error, TRACEBACK
    counts.setdefault(area, Counter())[outcome] += 1
    if outcome not in (CLEAN, RIGHT):
        raise AssertionError(f"{area}: {outcome}") from about
