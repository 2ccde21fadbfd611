"""Tables and figures from rows, and numbers as a reader wants them. Figures need the extra ``report``."""

from moiety.reports.clients import draw_clients
from moiety.reports.figures import accuracy_against_parameters, save, scatter_change, seed_bands, violins
from moiety.reports.lines import bands, courses, forest, heat_map, log_panels
from moiety.reports.reliability import densities, reliability_diagram
from moiety.reports.tables import markdown
from moiety.reports.words import (
    format_amount,
    format_count,
    format_gain,
    format_metric,
    is_percentage,
    list_names,
    make_printable,
)

__all__ = [
    "accuracy_against_parameters",
    "bands",
    "courses",
    "densities",
    "draw_clients",
    "forest",
    "format_amount",
    "format_count",
    "format_gain",
    "format_metric",
    "heat_map",
    "is_percentage",
    "list_names",
    "log_panels",
    "make_printable",
    "markdown",
    "reliability_diagram",
    "save",
    "scatter_change",
    "seed_bands",
    "violins",
]
