"""Options of ``mo.fit`` in one flat dictionary, as parametrised tests have them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import moiety as mo

RARE = {each.name for each in fields(mo.Settings)}


def with_settings(**options: Any) -> dict[str, Any]:
    """The same options as ``mo.fit``, ``mo.pipeline`` and ``mo.resume`` take them: the rare ones in ``settings``."""
    rare = {name: options.pop(name) for name in RARE & options.keys()}
    return {**options, "settings": mo.Settings(**rare)} if rare else options
