"""What holds of "Global and Local Learning for Distributed Personalization": a short page from pages that decide.

    python -m moiety_recipes.glocal_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Drawing, Holds

FOLDED = r".*, letter|normalised: .*level.*|.*aligned beats .*|Central gains more.*|.*labels -1/2 and 1/2, tau there.*"
"""Headlines on one data set, and on readings between those that are shown."""
DRAWINGS = {
    "table1.png": Drawing(
        "glocal-rules", r"(\S+): Glocal beats (\S+), pooled", "Table 1: Glocal minus each baseline, seven data sets"
    ),
    "table1-independent.png": Drawing(
        "glocal-rules", r"Adagrad: Glocal beats Indep, pooled", "Table 1: Glocal minus Indep by Adagrad"
    ),
    "clients.png": Drawing(
        "glocal-clients",
        r"Glocal gains more on Indep with 40 clients than with 2, pooled",
        "Figures 1 and 5: Glocal's lead with 40 clients minus that with 2",
    ),
    "features.png": Drawing(
        "glocal-features",
        r"Glocal beats (\S+) with 40 clients, pooled",
        "Figure 7: Glocal minus each baseline, 40 clients",
    ),
    "delay.png": Drawing(
        "glocal-readings",
        r"(.*tau each way|.*tau there and back): tau = 200 costs at most 2 points, pooled",
        "Figures 2 and 6: with a delay of 200 rounds minus without",
        line=-2.0,
    ),
}

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
    fold_pattern=FOLDED,
    drawings=DRAWINGS,
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
