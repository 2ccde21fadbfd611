"""What holds of Kotelevskii et al. 2022 (FedPop): a short page from the tables of the pages that decide.

    python -m moiety_recipes.fedpop_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Holds

PAPER = Holds(
    program="fedpop_holds",
    about=__doc__,
    paper="Kotelevskii et al. 2022",
    plan="docs/fedpop-plan.md",
    titles={
        "fedpop-work": "Table 2 and Figure 3",
        "fedpop-uncertainty": "Figure 4",
    },
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
