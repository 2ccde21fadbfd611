import signal
import sys
from pathlib import Path

import pytest
import torch

# The oracles are plain modules that tests in several folders use.
sys.path.insert(0, str(Path(__file__).parent / "oracles"))


# A shell that starts us in the background has Ctrl-C ignored, and what tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were left out for want of data; under xdist this runs in the controller, which has all."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in skipped]
    count = sum("MOIETY_DATA" in reason for reason in reasons)
    terminalreporter.write_line(
        f"{count} test{'s' * (count != 1)} skipped: MOIETY_DATA is not set"
        if count
        else "no test was skipped for want of MOIETY_DATA"
    )
