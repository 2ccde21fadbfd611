"""What was found of candidate splits, as a record that can be read."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LESS, NONE, ENOUGH = "personalise less", "nothing is personal", "something is left to share"
UNSOLVED = 0.1
"""Where finetuning leaves more than this share of the personal gradient, F is said to be of unfinished finetuning."""


@dataclass(frozen=True)
class SplitFound:
    """One split at one theta. Norms are medians over the clients looked at.

    ``f`` is ||F_m||, the gradient in the shared parameters after the personal ones were solved for; ``before`` the same
    gradient before; ``left`` the median of their ratio. ``mean_f`` is the norm of the clients' mean F, which moves
    theta. ``unsolved`` is the personal gradient after the solver over that before it. ``loss`` is the clients' mean on
    training rows, and ``metric`` on validation rows (weighted by them), both after finetuning. ``path`` has the same
    numbers along the FFGG run, where one was asked for, from round 0.
    """

    split: str
    personal: int
    shared: int
    f: float
    before: float
    left: float
    mean_f: float
    unsolved: float
    loss: float
    metric: float | None
    verdict: str
    path: tuple[dict[str, float | None], ...] = ()


COLUMNS = {
    "split": "split",
    "personal": "personal",
    "shared": "shared",
    "f": "|F_m|",
    "before": "before",
    "left": "left",
    "mean_f": "|mean F|",
    "unsolved": "unsolved",
    "loss": "loss",
    "metric": "metric",
    "verdict": "verdict",
}


@dataclass(frozen=True)
class Diagnosis:
    """The splits in the order given, and what follows. ``print`` shows both.

    ``close`` is the share of the gradient at which too little is left. ``metric_name`` and ``higher_is_better`` are
    those of the metric.
    """

    splits: tuple[SplitFound, ...]
    close: float
    clients: int
    metric_name: str
    higher_is_better: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per split."""
        return [asdict(found) for found in self.splits]

    @property
    def best(self) -> SplitFound | None:
        """The split with the best validation metric; of equals, the one with fewest personal parameters."""
        return self._best(self.splits)

    @property
    def best_that_shares(self) -> SplitFound | None:
        """The same among those that leave the shared part something to learn."""
        return self._best([s for s in self.splits if s.verdict != LESS])

    def _best(self, among: Sequence[SplitFound]) -> SplitFound | None:
        sign = 1 if self.higher_is_better else -1
        known = [s for s in among if s.metric is not None and math.isfinite(s.metric)]
        return max(known, key=lambda s: (sign * float(s.metric or 0.0), -s.personal), default=None)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        said = []
        near = [s for s in self.splits if s.verdict == LESS]
        for s in near:
            left = f"{s.left:.2g} of its gradient" if s.shared else "no parameter"
            said.append(f"{s.split}: finetuning leaves the shared part {left}; personalise less, or finetune less.")
        if not near:
            said.append(f"Every split leaves the shared part at least {self.close:g} of its gradient to learn from.")
        best, sharing = self.best, self.best_that_shares
        if best is None:
            said.append("There are no validation rows, so nothing is said of scores.")
        else:
            said.append(f"The best {self.metric_name} on validation rows has {best.split}, {best.metric:.4g}.")
            if sharing is not None and sharing is not best:
                said.append(f"Of those that leave something to share it is {sharing.split}, {sharing.metric:.4g}.")
        loose = [s.split for s in self.splits if s.unsolved > UNSOLVED]
        if loose:
            said.append(
                f"The solver left more than {UNSOLVED:g} of the personal gradient in {', '.join(loose)}: F is of"
                " unfinished finetuning there."
            )
        said.append("|F| cannot say that more should be personal.")
        return " ".join(said)

    def markdown(self) -> str:
        """The table as Markdown."""
        cells = [list(COLUMNS.values()), *self._cells()]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
        lines.insert(1, "|" + "|".join(":---" if key in ("split", "verdict") else "---:" for key in COLUMNS) + "|")
        return "\n".join(lines)

    def __str__(self) -> str:
        cells = [list(COLUMNS.values()), *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
        lines = []
        for row in cells:
            first, *rest = (c.rjust(w) for c, w in zip(row, widths, strict=True))
            lines.append("  ".join([first.strip().ljust(widths[0]), *rest[:-1], row[-1]]))
        return "\n".join([*lines, "", textwrap.fill(self.sentence, 100)])

    def _cells(self) -> list[list[str]]:
        return [[_cell(row[key]) for key in COLUMNS] for row in self.rows]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
