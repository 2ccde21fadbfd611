"""Ready experiments: one function each, and a table of them. Nothing heavy is imported before one is called."""

from __future__ import annotations

from moiety.recipes.base import Outcome, Recipe, Watch
from moiety.recipes.fedpop_full import fedpop_full
from moiety.recipes.fedpop_people import fedpop_people
from moiety.recipes.fedpop_small import fedpop_small
from moiety.recipes.fedpop_toy import fedpop_toy
from moiety.recipes.fedpop_uncertainty import fedpop_uncertainty
from moiety.recipes.fedspa_ablations import fedspa_ablations
from moiety.recipes.fedspa_sparsity import fedspa_sparsity
from moiety.recipes.fedspa_table1 import fedspa_table1
from moiety.recipes.fedspa_table2 import fedspa_table2
from moiety.recipes.ffgg_table1 import ffgg_table1

RECIPES: dict[str, Recipe] = {
    "fedpop-full": fedpop_full,
    "fedpop-people": fedpop_people,
    "fedpop-small": fedpop_small,
    "fedpop-toy": fedpop_toy,
    "fedpop-uncertainty": fedpop_uncertainty,
    "ffgg-table1": ffgg_table1,
    "fedspa-table1": fedspa_table1,
    "fedspa-table2": fedspa_table2,
    "fedspa-sparsity": fedspa_sparsity,
    "fedspa-ablations": fedspa_ablations,
}
"""The recipes by the names that ``moiety run`` knows."""

__all__ = [
    "RECIPES",
    "Outcome",
    "Recipe",
    "Watch",
    "fedpop_full",
    "fedpop_people",
    "fedpop_small",
    "fedpop_toy",
    "fedpop_uncertainty",
    "fedspa_ablations",
    "fedspa_sparsity",
    "fedspa_table1",
    "fedspa_table2",
    "ffgg_table1",
]
