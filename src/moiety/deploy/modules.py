"""Apps that are loaded one after the other in one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def forget_modules(folder: Path) -> None:
    """Let Python forget the modules of apps that were loaded from ``folder``: another app's may have the same names.

    Apps that are loaded keep the modules that they use.
    """
    place = str(folder.absolute())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(place + os.sep):
            del sys.modules[name]
    sys.path[:] = [each for each in sys.path if not each.startswith(place + os.sep)]
