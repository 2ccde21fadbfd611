"""What holds of Huang et al. 2022 (FedSpa): a short page from the tables of the pages that decide.

    python -m moiety_recipes.fedspa_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Holds

PAPER = Holds(
    program="fedspa_holds",
    about=__doc__,
    paper="Huang et al. 2022",
    plan="docs/fedspa-plan.md",
    titles={
        "fedspa-table1": "Tables 1 and 2",
        "fedspa-sparsity": "Table 3 and Figure 4",
        "fedspa-ablations": "Table 4 and Figures 5 to 8",
        "fedspa-theorem1": "Theorem 1",
    },
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
