"""Tables and figures from rows. Figures need the extra ``report``."""

from moiety.reports.figures import accuracy_against_parameters, save, scatter_change, seed_bands, violins
from moiety.reports.lines import bands, courses, heat_map, log_panels
from moiety.reports.reliability import densities, reliability_diagram
from moiety.reports.tables import markdown

__all__ = [
    "accuracy_against_parameters",
    "bands",
    "courses",
    "densities",
    "heat_map",
    "log_panels",
    "markdown",
    "reliability_diagram",
    "save",
    "scatter_change",
    "seed_bands",
    "violins",
]
