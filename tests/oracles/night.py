"""Whether tests run in the gate, or at night, when there is time for what only repeats the same at more places."""

import os

NIGHTLY = bool(os.environ.get("MOIETY_NIGHTLY"))
"""Whether to try everything, which takes minutes, and not a sample."""
