"""What holds of "Global and Local Learning for Distributed Personalization": a short page from pages that decide.

    python -m moiety_recipes.glocal_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Holds

PAPER = Holds(
    program="glocal_holds",
    about=__doc__,
    paper="Global and Local Learning for Distributed Personalization",
    plan="docs/glocal-plan.md",
    titles={
        "glocal-rules": "Table 1",
        "glocal-clients": "Figures 1 and 5",
        "glocal-features": "Figure 7",
        "glocal-readings": "Figures 2 and 6",
    },
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
