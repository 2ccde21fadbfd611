"""Tests that need heavy libraries. ``make test-extras`` runs them; ``make test`` passes them over."""

import os

if not os.environ.get("MOIETY_EXTRAS"):
    collect_ignore_glob = ["*.py"]
