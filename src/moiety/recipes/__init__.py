"""Ready experiments: one function each, and a table of them. Nothing heavy is imported before one is called."""

from __future__ import annotations

from moiety.recipes.base import Outcome, Recipe, Watch
from moiety.recipes.fedalt_images import fedalt_images
from moiety.recipes.fedalt_speech import fedalt_speech
from moiety.recipes.fedalt_text import fedalt_text
from moiety.recipes.quickstart import quickstart

RECIPES: dict[str, Recipe] = {
    "quickstart": quickstart,
    "fedalt-images": fedalt_images,
    "fedalt-speech": fedalt_speech,
    "fedalt-text": fedalt_text,
}
"""The recipes by the names that ``moiety run`` knows."""

__all__ = ["RECIPES", "Outcome", "Recipe", "Watch", "fedalt_images", "fedalt_speech", "fedalt_text", "quickstart"]
