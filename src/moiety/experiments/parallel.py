"""Cells side by side, each in a process of its own. Nothing is pickled: a process is forked, and answers with JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
from threadpoolctl import threadpool_limits

from moiety.engines.processes import can_fork, count_cores
from moiety.errors import MoietyError, message, must, whole
from moiety.experiments.records import Cell, Row, watch_nothing
from moiety.files import release_locks

if TYPE_CHECKING:
    from moiety.experiments.runner import Runner

PR_SET_PDEATHSIG = 1


def count_jobs(jobs: int | None, cells: int) -> int:
    """How many cells are run at a time: as many as asked for, else as many as there are cores."""
    if jobs is None:
        return max(1, min(count_cores(), cells)) if can_fork() else 1
    whole("jobs", jobs, 1)
    must(jobs == 1 or can_fork(), "jobs", "1 where processes cannot be forked", jobs)
    must(jobs <= count_cores(), "jobs", f"<= {count_cores()}, the cores of this machine", jobs)
    return min(jobs, max(cells, 1))


def run_cells(runner: Runner, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Row]]:
    """Run the cells, ``jobs`` at a time; gives each with what was kept of it, as they end."""
    if jobs == 1:
        yield from ((cell, runner.run(cell)) for cell in cells)
        return
    context = multiprocessing.get_context("fork")
    queue, running = list(reversed(cells)), dict[Connection, tuple[Cell, Any]]()
    try:
        while queue or running:
            while queue and len(running) < jobs:
                cell = queue.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_serve, args=(runner, cell, theirs, os.getpid()))
                process.start()
                theirs.close()
                running[ours] = cell, process
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                cell, process = running[pipe]
                row = _receive(pipe, cell, process)
                del running[pipe]
                runner.results[cell.key] = row
                yield cell, row
    finally:
        for _, process in running.values():
            process.terminate()  # what it has written stays, and goes on from there
        for pipe, (_, process) in running.items():
            process.join()
            pipe.close()


def _receive(pipe: Connection, cell: Cell, process: Any) -> Row:
    """What a process kept of its cell; its error where it has one."""
    answer: Row = {}
    with contextlib.suppress(EOFError, ConnectionResetError):
        answer = json.loads(pipe.recv_bytes())
    pipe.close()
    process.join()
    if "error" in answer:
        raise MoietyError(answer["error"])
    if "row" not in answer and process.exitcode == 1:  # an exception, which it has shown
        raise RuntimeError(f"{cell.label} failed in its process; the traceback is above. The same call goes on.")
    if "row" not in answer:
        problem = f"{cell.label}, whose process ended with {process.exitcode}"
        hint = "What has ended is kept: the same call goes on. Where memory is short, run fewer at a time."
        raise MoietyError(message("jobs", "so many that all runs end", problem, hint))
    return dict(answer["row"])


def _serve(runner: Runner, cell: Cell, pipe: Connection, parent: int) -> None:
    """What a process does: run one cell and answer. It ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that call
        os._exit(1)
    release_locks()
    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy's own
    runner.watch = watch_nothing
    try:
        answer: Row = {"row": runner.run(cell)}
    except MoietyError as error:
        answer = {"error": str(error)}
    pipe.send_bytes(json.dumps(answer).encode())
    pipe.close()
