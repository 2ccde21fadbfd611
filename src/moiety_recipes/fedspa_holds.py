"""What holds of Huang et al. 2022 (FedSpa): a short page from the tables of the pages that decide.

    python -m moiety_recipes.fedspa_holds RUN [RUN ...] --out FOLDER

A RUN is the folder of a recipe that has ended at scale ``night``.
"""

from __future__ import annotations

import sys

from moiety_recipes.holds import Drawing, Holds

FOLDED = (
    r"A: .*|IID: DST, different masks .*|IID: sparsity 0\.2 .*|mean squared norm .*"
    r"|.* needs fewer rounds to \S+ than Ditto|.*\(.*needs fewer rounds to \S+ than .*\(RSM\)|.*\(RSM\) needs fewer .*"
)
"""Headlines on setting A, between the two others, and those that say the same of another method or measure."""
DRAWINGS = {
    "table1.png": Drawing(
        "fedspa-table1", r"(.* is (?:ahead of|within \S+ points of) .*)", "Table 1: how far the first method is ahead"
    ),
    "table2.png": Drawing(
        "fedspa-table1", r"(.* needs fewer rounds to .* than .*)", "Table 2: rounds that the first method saves"
    ),
    "table3.png": Drawing(
        "fedspa-sparsity", r"(.*: sparsity .* is ahead of .*)", "Table 3: how far the first sparsity is ahead"
    ),
    "best-sparsity.png": Drawing(
        "fedspa-sparsity",
        r"the best sparsity is larger in B than in IID .*",
        "Figure 4: the best sparsity, B minus IID",
    ),
    "table4.png": Drawing("fedspa-ablations", r"(.*)", "Table 4: how far the first variant is ahead"),
    "theorem1-gradients.png": Drawing(
        "fedspa-theorem1", r"G is larger in B than in IID .*", "Theorem 1: clients' gradients (G), B minus IID"
    ),
    "theorem1-spread.png": Drawing(
        "fedspa-theorem1",
        r"mean squared norm of the difference from the mean gradient is .*",
        "Theorem 1: squared distance from the mean gradient, B minus IID",
    ),
    "theorem1-masks.png": Drawing(
        "fedspa-theorem1", r"distance of the masks of two clients.*", "Theorem 1: distance of masks, B minus IID"
    ),
}
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
    fold_pattern=FOLDED,
    drawings=DRAWINGS,
)
make_page, main = PAPER.make_page, PAPER.main

if __name__ == "__main__":
    sys.exit(main())
