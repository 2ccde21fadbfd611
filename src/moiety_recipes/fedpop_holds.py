"""What holds of Kotelevskii et al. 2022 (FedPop): a short page from the tables of the pages that decide.

    python -m moiety_recipes.fedpop_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Drawing, Holds

DRAWINGS = {
    "table2.png": Drawing(
        "fedpop-work", r"Table 2, equal work: FedSOUL beats (.*)", "Table 2: FedSOUL minus each other method"
    ),
    "figure3.png": Drawing(
        "fedpop-work", r"Figure 3, equal work: FedSOUL beats (.*)", "Figure 3: FedSOUL minus each other method"
    ),
    "calibration.png": Drawing(
        "fedpop-uncertainty",
        r"(.*), equal work: FedSOUL is better calibrated than (.*)",
        "Figure 4: calibration error of each other method minus FedSOUL's",
    ),
    "calibration-error.png": Drawing(
        "fedpop-uncertainty",
        r"(.*), equal work: the calibration error of FedSOUL is below .*",
        "Figure 4: how far FedSOUL's calibration error is below 5 points",
    ),
    "strange.png": Drawing(
        "fedpop-uncertainty",
        r".*, equal work: FedSOUL tells strange pictures (.*)",
        "Figure 4: strange pictures, by how much FedSOUL's AUROC is better",
    ),
}
PAPER = Holds(
    program="fedpop_holds",
    about=__doc__,
    paper="Kotelevskii et al. 2022",
    plan="docs/fedpop-plan.md",
    titles={
        "fedpop-work": "Table 2 and Figure 3",
        "fedpop-uncertainty": "Figure 4",
    },
    drawings=DRAWINGS,
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
