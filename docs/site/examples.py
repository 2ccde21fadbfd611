"""Lets the examples of docstrings (``>>>``) be shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
"""From ``>>>`` to the next empty line."""


class FenceExamples(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change one docstring."""
        if obj.docstring and ">>>" in obj.docstring.value:
            text = griffe.cleandoc(obj.docstring.value) if hasattr(griffe, "cleandoc") else obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found.group(0)}\n```", text)
