"""The executor beside a SuperLink: ``flower-superexec`` with the same options, which outlives errors that pass.

By itself it ends when the SuperLink answers a single call with an error of its own (status 500), for example because
its database was locked for more than five seconds. The server's side of the app watches the executor's process and ends
with it, and with that the run. Here the executor begins again within the same process, so the server's side goes on.
This uses nothing of Flower that is not public.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import entry_points

import httpx

from moiety.deploy.app import show_log
from moiety.deploy.calls import is_break, is_trouble

PAUSE = 1.0
"""Seconds before the executor begins again."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("moiety")


def run_executor(arguments: Sequence[str]) -> None:
    """Run Flower's executor until it ends by itself or is asked to end."""
    show_log()
    (command,) = entry_points(group="console_scripts", name="flower-superexec")
    sys.argv = [command.name, *arguments]
    execute = command.load()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    while True:
        try:
            execute()
            return
        except httpx.HTTPError as error:
            if not (is_trouble(error) or is_break(error)):
                raise
            log.warning("the executor begins again in %g s, and its apps go on: %s", PAUSE, error)
        for number, handler in handlers.items():  # Flower puts its own in their place at each beginning
            signal.signal(number, handler)
        time.sleep(PAUSE)
