"""The command ``moiety``: run an experiment, list what there is, compare runs.

Nothing heavy is imported before work begins: ``moiety --help`` knows neither torch nor NumPy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from moiety.cli.interrupts import Interrupted
from moiety.errors import MoietyError

PIPE_CLOSED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0, 2 for bad input (one line on stderr), 130 where interrupted.

    An exception that bad input cannot cause is a bug, and is shown as one.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a client's name may hold what the terminal cannot show
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with _shorten_warnings():
            code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except SystemExit as end:  # typer's way to end after completion, and where the reader has gone (``| head``)
        return end.code if isinstance(end.code, int) else PIPE_CLOSED
    except BrokenPipeError:
        # What is still in the buffer must not be written at exit.
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


@contextlib.contextmanager
def _shorten_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the place in the source."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"moiety: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(argv: list[str]) -> int:
    from moiety.cli.commands import app

    try:
        code = app(argv, prog_name="moiety", standalone_mode=False)
    except MoietyError as error:
        return _fail(str(error))
    except Interrupted as error:
        return _fail(str(error), INTERRUPTED)
    except OSError as error:
        if error.filename is None:  # a broken pipe too, which ``main`` sees to
            raise
        return _fail(f"{error.strerror or error}: {error.filename}")
    except Exception as error:
        # Usage errors are click's in older versions of typer and typer's own in newer ones; both can format themselves.
        if type(error).__name__ == "Abort":
            return _fail("interrupted", INTERRUPTED)
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "moiety"
        message = error.format_message().rstrip(".")
        return _fail(f"{message}{'' if message.endswith('?') else '.'} See {where} --help.")
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(text: str, code: int = BAD_INPUT) -> int:
    """Say it in exactly one line."""
    print(f"moiety: {' '.join(text.split())}", file=sys.stderr)
    return code
