"""Experiments: declared comparisons that are run, judged and written as a page by one runner.

An ``Experiment`` says what is compared: a plan for each scale, cells that are each run once, and a page. A recipe is an
experiment that a package brings under a name (entry-point group ``moiety.recipes``); ``moiety run NAME`` runs it.
"""

from moiety.analysis.intervals import FAILS, HOLDS, UNDECIDED, claim, interval, table_row
from moiety.experiments.experiment import Experiment
from moiety.experiments.judge import claim_row, compare, count_verdicts, decide, score_row, show_interval
from moiety.experiments.page import CI_NOTICE, write_summary
from moiety.experiments.plans import SCALES
from moiety.experiments.records import Cell, Cells, Outcome, Page, Results, Row, Section, Watch, keep_clients
from moiety.experiments.registry import list_recipes, load_recipe

__all__ = [
    "CI_NOTICE",
    "FAILS",
    "HOLDS",
    "SCALES",
    "UNDECIDED",
    "Cell",
    "Cells",
    "Experiment",
    "Outcome",
    "Page",
    "Results",
    "Row",
    "Section",
    "Watch",
    "claim",
    "claim_row",
    "compare",
    "count_verdicts",
    "decide",
    "interval",
    "keep_clients",
    "list_recipes",
    "load_recipe",
    "score_row",
    "show_interval",
    "table_row",
    "write_summary",
]
