"""Tests in a real browser. ``make test-browser`` runs them; ``make test`` passes them over."""

import os

if not os.environ.get("MOIETY_BROWSER"):
    collect_ignore_glob = ["*.py"]
