"""``python -m moiety`` is the command ``moiety``."""

import sys

from moiety.cli import main

sys.exit(main())
