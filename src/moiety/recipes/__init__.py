"""Ready experiments: one function each, and a table of them. Nothing heavy is imported before one is called."""

from __future__ import annotations

from moiety.recipes.base import Outcome, Recipe, Watch
from moiety.recipes.fedalt_images import fedalt_images
from moiety.recipes.fedalt_speech import fedalt_speech
from moiety.recipes.fedalt_text import fedalt_text
from moiety.recipes.fedspa_ablations import fedspa_ablations
from moiety.recipes.fedspa_sparsity import fedspa_sparsity
from moiety.recipes.fedspa_table1 import fedspa_table1
from moiety.recipes.fedspa_table2 import fedspa_table2
from moiety.recipes.ffgg_table1 import ffgg_table1

RECIPES: dict[str, Recipe] = {
    "fedalt-images": fedalt_images,
    "fedalt-speech": fedalt_speech,
    "fedalt-text": fedalt_text,
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
    "fedalt_images",
    "fedalt_speech",
    "fedalt_text",
    "fedspa_ablations",
    "fedspa_sparsity",
    "fedspa_table1",
    "fedspa_table2",
    "ffgg_table1",
]
