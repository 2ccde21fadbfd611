"""Tables and figures from rows, and numbers as a reader wants them. Figures need the extra ``report``."""

from moiety.reports.figures import accuracy_against_parameters, save, scatter_change, seed_bands, violins
from moiety.reports.lines import bands, courses, heat_map, log_panels
from moiety.reports.reliability import densities, reliability_diagram
from moiety.reports.tables import markdown
from moiety.reports.words import amount, count, gain, names, per_cent, printable, value

__all__ = [
    "accuracy_against_parameters",
    "amount",
    "bands",
    "count",
    "courses",
    "densities",
    "gain",
    "heat_map",
    "log_panels",
    "markdown",
    "names",
    "per_cent",
    "printable",
    "reliability_diagram",
    "save",
    "scatter_change",
    "seed_bands",
    "value",
    "violins",
]
