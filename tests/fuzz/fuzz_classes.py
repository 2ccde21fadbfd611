"""What becomes of one fuzzed case, and how many cases of each class there were."""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from night import NIGHTLY

from moiety.cli import main
from moiety.errors import MoietyError

CLEAN, RIGHT, TRACEBACK, HANG, WRONG = "clean line", "accepted and right", "traceback", "hang", "silently wrong"
SECONDS = 300
"""What takes longer hangs; a slow case on a busy machine does not."""
CASES = 1000 if NIGHTLY else 75
"""For each of the seven areas where a case takes milliseconds."""
SLOW_CASES = 400 if NIGHTLY else 20
"""For each of the six areas where a case trains several runs, or reads many files."""
counts: dict[str, Counter[str]] = {}

fuzzed = settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
slowly_fuzzed = settings(fuzzed, max_examples=SLOW_CASES)


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


def counted(area: str, cases: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a test of an area print what became of its cases, and see that both good classes and all cases are there."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            counts.pop(area, None)
            test(*args, **kwargs)
            print(area, dict(counts[area]))
            assert counts[area][CLEAN] > 0
            assert counts[area][RIGHT] > 0
            assert sum(counts[area].values()) >= 0.9 * cases, counts[area]

        return run

    return decorate


def call_command(words: list[str]) -> tuple[int, str, list[str]]:
    """Give the words to ``moiety``; its exit code, what it printed, and its lines on stderr.

    Bad input (exit code 2) is a ``MoietyError`` of its line.
    """
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    lines = errors.getvalue().splitlines()
    assert code in (0, 2), code
    assert bool(lines) >= (code == 2), "a bad end without a word"
    assert all(line.startswith("moiety: ") for line in lines), lines
    return code, out.getvalue(), lines
