"""Ready experiments: one function each, and a table of them. Nothing heavy is imported before one is called."""

from __future__ import annotations

from moiety.recipes.base import Outcome, Recipe, Watch
from moiety.recipes.fedalt_images import fedalt_images
from moiety.recipes.fedalt_speech import fedalt_speech
from moiety.recipes.fedalt_text import fedalt_text
from moiety.recipes.fedpop_full import fedpop_full
from moiety.recipes.fedpop_people import fedpop_people
from moiety.recipes.fedpop_small import fedpop_small
from moiety.recipes.fedpop_toy import fedpop_toy
from moiety.recipes.fedpop_uncertainty import fedpop_uncertainty
from moiety.recipes.ffgg_table1 import ffgg_table1

RECIPES: dict[str, Recipe] = {
    "fedalt-images": fedalt_images,
    "fedalt-speech": fedalt_speech,
    "fedalt-text": fedalt_text,
    "ffgg-table1": ffgg_table1,
    "glocal-table1": glocal_table1,
    "glocal-clients": glocal_clients,
    "glocal-delay": glocal_delay,
    "glocal-features": glocal_features,
    "glocal-fictitious": glocal_fictitious,
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
    "fedpop_full",
    "fedpop_people",
    "fedpop_small",
    "fedpop_toy",
    "fedpop_uncertainty",
    "ffgg_table1",
]
