"""The scales of a recipe."""

SCALES = ("ci", "laptop", "paper")
