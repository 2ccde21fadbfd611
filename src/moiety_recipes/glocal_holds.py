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
    "rules.png": Drawing(
        "glocal-rules",
        r"Glocal scores higher by the normalised rule than by Adagrad, pooled",
        "Table 1: Glocal by the normalised rule minus by Adagrad",
    ),
    "levels.png": Drawing(
        "glocal-rules",
        r"(\S+): Glocal has the paper's level, within 1, pooled",
        "Table 1: Glocal here minus in the paper",
        line=-1.0,
    ),
    "clients.png": Drawing(
        "glocal-clients",
        r"(\S+) gains more on Indep with 40 clients than with 2, pooled",
        "Figures 1 and 5: the lead on Indep with 40 clients minus that with 2",
    ),
    "clients-baselines.png": Drawing(
        "glocal-clients",
        r"Glocal beats (\S+) with 40 clients, pooled",
        "Figures 1 and 5: Glocal minus each baseline, 40 clients",
    ),
    "features.png": Drawing(
        "glocal-features",
        r"Glocal beats (\S+) with 40 clients, pooled",
        "Figure 7: Glocal minus each baseline, 40 clients",
    ),
    "features-clients.png": Drawing(
        "glocal-features",
        r"(\S+) gains more on Indep with 40 clients than with 2, pooled",
        "Figure 7: the lead on Indep with 40 clients minus that with 2",
    ),
    "features-close.png": Drawing(
        "glocal-features",
        r"Glocal is close to Indep with 40 clients \(within 2\), pooled",
        "Figure 7: Glocal minus Indep on pendigits and letter",
        line=-2.0,
    ),
    "delay.png": Drawing(
        "glocal-readings",
        r"(.*tau each way|.*tau there and back): tau = 200 costs at most 2 points, (pooled|letter)",
        "Figures 2 and 6: with a delay of 200 rounds minus without",
        line=-2.0,
    ),
    "aligned.png": Drawing(
        "glocal-readings",
        r"(.*): aligned beats (\S+) at tau = 200, pooled",
        "Delay of 200 rounds: the aligned rule minus the others",
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
