"""The end of a run or of a pipeline, as the command prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moiety.cli.output import say, show
from moiety.cli.report import report_end
from moiety.reports.summary import SHARED_ALONE, costs, scores, sentence, stages_sentence, stages_table, unit
from moiety.run.result import Run


def show_end(runs: Sequence[Run], name: str, folder: Path, *, quiet: bool) -> None:
    """Print how the run of this name, or the stages of a pipeline, ended; ``quiet``, only a sentence and the folder."""
    staged = runs[0].folder != folder
    results = [each.result(each.folder.name if staged and each.folder else name) for each in runs]
    if not quiet:
        say()
        if staged:
            show(stages_table(results))
            caption = "gain, better, equal, worse: client by client against the stage before"
            say(f"{caption}, in {unit(results[0].metric)} (+ is better)")
        else:
            show(scores(results[0]))
            say(f"{SHARED_ALONE}; a gain above 0 is for the better\n")
            show(costs(results[0]))
        say()
    report_end(folder, None if staged else runs[0], quiet=quiet)
    say(stages_sentence(results) if staged else sentence(results[0]))
    say(f"results in {folder}")
