"""Converter of pen strokes: the letters of Chars74K, drawn as small pictures."""

from __future__ import annotations

import json
import string

import numpy as np

from moiety.data.federated import Array
from moiety.data.originals.pictures import Arrays, Files
from moiety.errors import must

_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIZE, _BOX, _PEN, _FINER = 28, 20, 2.0, 8
"""A picture's width, the box that points are fitted to, the width of the pen, and how much finer it is drawn first."""

Strokes = list[list[list[int]]]


def convert_chars74k(files: Files) -> Arrays:
    """A table from characters to drawings, one for each writer in the same order: lists of strokes of points (x, y)."""
    (path,) = files.values()
    drawings: dict[str, list[Strokes]] = json.loads(path.read_text(encoding="utf-8"))
    must(sorted(drawings) == sorted(_CLASSES), path.name, "a table of the 62 letters and digits", f"{len(drawings)}")
    writers = {len(own) for own in drawings.values()}
    must(len(writers) == 1, path.name, "of one drawing for each writer", "others")
    (count,) = writers
    rows = [drawings[character][writer] for writer in range(count) for character in _CLASSES]
    return {
        "X": np.stack([draw_strokes(drawing) for drawing in rows]),
        "y": np.tile(np.arange(62), count).astype(np.uint8),
        "client": np.repeat(np.arange(count), 62).astype(np.uint8),
        "bbox": np.array([_find_box(drawing) for drawing in rows], np.int16),
        "n_strokes": np.array([len(drawing) for drawing in rows], np.uint8),
        "classes": np.array(list(_CLASSES)),
    }


def _find_box(drawing: Strokes) -> list[int]:
    """Left, top, right and bottom."""
    points = np.array([point for stroke in drawing for point in stroke])
    must(points.ndim == 2 and points.shape[1] == 2, "drawing", "strokes of points of two numbers", "others")
    return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]


def draw_strokes(drawing: Strokes) -> Array:
    """The strokes fitted to a box of 20 x 20 in the middle of uint8 [28, 28], white on black."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = _find_box(drawing)
    scale = _BOX / max(right - left, bottom - top, 1)
    middle = np.array([left + right, top + bottom]) / 2
    image = Image.new("L", (_SIZE * _FINER, _SIZE * _FINER))
    pen, radius = ImageDraw.Draw(image), _PEN * _FINER / 2
    for stroke in drawing:
        places = ((np.array(stroke) - middle) * scale + _SIZE / 2) * _FINER
        pen.line([(float(x), float(y)) for x, y in places], fill=255, width=round(2 * radius))
        for x, y in places:  # round ends and corners
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(image.resize((_SIZE, _SIZE), Image.Resampling.BOX))
