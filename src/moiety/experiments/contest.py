"""Successive halving of candidates, and the final comparison of the best with one model for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

from moiety.algorithms import fedavg, local_only
from moiety.analysis.candidates import Candidate, Own, list_candidates
from moiety.analysis.recommendation import ONE
from moiety.errors import must
from moiety.evaluation.per_client import worst_decile
from moiety.experiments.halving import LEAST_RIVALS, LEAST_SEEDS, Plan
from moiety.experiments.records import Row
from moiety.experiments.search import Search, Trial, name_start
from moiety.experiments.sweep import OnResult
from moiety.reports.versus import changes, column
from moiety.run.pipeline import Stage
from moiety.split import Split


@dataclass
class Contest:
    """Which candidates there are, how far each came, and what was kept of its runs.

    ``best`` has the best run of each candidate in its ``last_rung``; ``references`` the best run of one
    model for all in each rung; ``finals`` the runs of the two that are compared on test rows. ``seconds`` is the time
    that was asked for, if any: what would end later is left out, and ``steps`` counts what was done (``Plan.steps``).
    """

    search: Search
    plan: Plan
    rates: list[float]
    on_result: OnResult | None = None
    seconds: float | None = None
    limits: tuple[int, ...] | None = None
    """The steps to be done, as an earlier search recorded them."""
    steps: list[int] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    diagnosis: Row = field(default_factory=dict)
    best: dict[str, Row] = field(default_factory=dict)
    last_rung: dict[str, int] = field(default_factory=dict)
    references: list[Row] = field(default_factory=list)
    start_rates: dict[bool, float] = field(default_factory=dict)
    finals: dict[str, list[Row]] = field(default_factory=dict)
    count: int = 0

    @property
    def rival(self) -> Candidate:
        """The candidate that was best on validation rows in the last rung, besides one model for all."""
        last = len(self.plan.rungs) - 1
        finalists = [each for each in self.candidates[1:] if self.last_rung[each.name] == last]
        return self._rank(finalists)[0]

    def narrow(self, splits: Mapping[str, Split], own: Mapping[str, Own] | None, budget: int) -> None:
        """Go through the rungs: all candidates with short runs, fewer with longer ones."""
        self._tune_start(local=False)
        alive = self._list(splits, own, budget)
        if any(each.local for each in alive):
            self._tune_start(local=True)
        order = {each.name: self.rates for each in self.candidates}
        for at, rung in enumerate(self.plan.rungs):
            count = 0
            for candidate in (self.candidates[0], *alive):
                if candidate.name != ONE:
                    start = self.plan.start if candidate.local and at == 0 else 0
                    if not self._has_room(at, count, rung.rates * candidate.cost(rung.rounds) + start):
                        break
                    count += 1
                rates = order[candidate.name][: rung.rates]
                rows = self._sort([self._run_candidate(at, rung.rounds, candidate, rate) for rate in rates])
                order[candidate.name] = [row["rate"] for row in rows]
                self.best[candidate.name], self.last_rung[candidate.name] = rows[0], at
            self.steps.append(count)
            self.candidates = [each for each in self.candidates if each.name in self.last_rung]
            rivals = [each for each in alive[:count] if self.best[each.name]["score"] is not None]
            finite = bool(rivals) and self.best[ONE]["score"] is not None
            must(finite, "rates", "ones that do not diverge", self.rates, "Try smaller ones.")
            self.references.append(self.best[ONE])
            most = self.plan.rungs[at + 1].rivals if at + 1 < len(self.plan.rungs) else 1
            alive = self._rank(rivals)[:most]

    def compare(self) -> None:
        """Train the best and one model for all with new seeds, and score test rows."""
        count = 0
        for seed in range(self.search.seed + 1, self.search.seed + 1 + self.plan.steps[-1]):
            if not self._has_room(len(self.plan.rungs), count, self._cost_of_seed):
                break
            count += 1
            for candidate in (self.candidates[0], self.rival):
                trial = self._plan_trial(candidate, self.plan.full, self.best[candidate.name]["rate"], seed)
                row = self.search.run_final(candidate, trial)
                self.finals.setdefault(candidate.name, []).append(row)
                end = {"score": None, "state": "ended", "failed": row.get("failed")}
                self._tell(f"final comparison, {candidate.name}, seed {seed}", end)
        self.steps.append(count)

    @property
    def _cost_of_seed(self) -> int:
        """What one seed of the final comparison costs, in rounds of FedAvg."""
        kinds = 1 + any(each.local for each in self.candidates)
        return kinds * self.plan.start + 2 * self.plan.full

    def _has_room(self, at: int, count: int, cost: float) -> bool:
        """Whether a rung has room for one more step after ``count`` of them. The final comparison is the last rung.

        A search with a time limit takes the step if it can still end in time with the shortest later rungs.
        """
        if self.limits is not None:
            return count < self.limits[at]
        if self.seconds is None or count < (*LEAST_RIVALS, LEAST_SEEDS)[at]:
            return True
        rest = sum(
            rung.rates * rung.rounds * (1 + least)
            for rung, least in zip(self.plan.rungs[at + 1 :], LEAST_RIVALS[at + 1 :], strict=True)
        )
        rest += LEAST_SEEDS * self._cost_of_seed * (at < len(self.plan.rungs))
        return self.search.foresee(cost + rest) <= self.seconds

    def _plan_trial(self, candidate: Candidate, rounds: int, rate: float, seed: int) -> Trial:
        return Trial(rounds, rate, self.plan.start, self.start_rates[candidate.local], seed)

    def is_ahead(self, candidate: Candidate) -> bool:
        """Whether a candidate has a better score on validation rows than one model for all."""
        difference = self.best[candidate.name]["score"] - self.best[ONE]["score"]
        return bool(difference > 0 if self.search.higher_is_better else difference < 0)

    def make_stages(self, winner: Candidate) -> list[Stage]:
        """The stages that train a candidate as it was trained in the end."""
        search, cohort = self.search, self.search.cohort
        length = median_low([row["best_round"] for row in self.finals[winner.name] if "best_round" in row])
        rate, start_rate = self.best[winner.name]["rate"], self.start_rates[winner.local]
        work = search.at(start_rate)
        start = local_only(personal=work) if winner.local else fedavg(shared=work)
        last = Stage(winner.build(rate, start_rate), length, cohort, winner.split)
        return [Stage(start, self.plan.start, cohort), last]

    def list_notes(self, most: int) -> list[str]:
        """What a reader must know besides."""
        notes = []
        if self.plan.full < most:
            notes.append(
                f"The budget had room for {self.plan.full} rounds of FedAvg after the start, out of {most}: a"
                " larger one may tell more."
            )
        ends = [
            name
            for name in self.finals
            if len(self.rates) > 1 and self.best[name]["rate"] in (min(self.rates), max(self.rates))
        ]
        if ends:
            notes.append(f"The best learning rate of {' and of '.join(ends)} is at an end of the grid: try others too.")
        names = [name for name, row in self.best.items() if row["score"] is None]
        if names:
            notes.append(f"Diverged at every rate: {', '.join(names)}.")
        if self.limits is None and tuple(self.steps) != self.plan.steps:
            plan, steps = ", ".join(map(str, self.plan.steps)), ", ".join(map(str, self.steps))
            notes.append(
                f"Time ran short: of {plan} steps (rivals in the three rungs, seeds in the end) {steps} were done."
                " With this number of gradient evaluations and these steps the same answer comes again."
            )
        return notes

    def _list(self, splits: Mapping[str, Split], own: Mapping[str, Own] | None, budget: int) -> list[Candidate]:
        """List the candidates, the most promising splits first; gives those besides one model for all."""
        search = self.search
        self.diagnosis = search.diagnose(splits, self.plan, self.start_rates[False], budget)
        ranking = search.order(splits, self.diagnosis["metric"])
        first = self.diagnosis["better"] == "fedsim"
        every = list_candidates(
            search.model, search.data, search.work, ranking, loss=search.loss, simultaneous_first=first, own=own
        )
        self.candidates = every[: self.plan.candidates]
        return self.candidates[1:]

    def _tune_start(self, *, local: bool) -> None:
        """Find the learning rate of what candidates continue from."""
        rows = []
        for rate in self.rates:
            row = self.search.run_start(local, self.plan.tuning, rate)
            rows.append({**row, "rate": rate})
            self._tell(f"{name_start(local)}, rate {rate:g}", row)
        best = self._sort(rows)[0]
        must(best["score"] is not None, "rates", "ones that do not diverge", self.rates, "Try smaller ones.")
        self.start_rates[local] = best["rate"]

    def _run_candidate(self, at: int, rounds: int, candidate: Candidate, rate: float) -> Row:
        trial = self._plan_trial(candidate, rounds, rate, self.search.seed)
        row = self.search.run_candidate(at, candidate, trial)
        self._tell(f"{candidate.name}, rate {rate:g}", row)
        return row

    def _rank(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The best score first; of equal ones the better worst tenth, then fewer hurt, then the one listed first."""
        higher, shared = self.search.higher_is_better, column(self.best[ONE]["clients"])
        sign = -1 if higher else 1

        def judge(each: Candidate) -> tuple[float, float, float]:
            values = column(self.best[each.name]["clients"])
            gains = changes(values, shared, higher_is_better=higher).values()
            worst = worst_decile(np.array(list(values.values())), higher_is_better=higher)
            hurt = sum(gain < 0 for gain in gains) / max(1, len(gains))
            return sign * self.best[each.name]["score"], sign * worst, hurt

        return sorted(candidates, key=judge)

    def _sort(self, rows: Sequence[Row]) -> list[Row]:
        """The best score first, and runs that failed last."""
        sign = -1 if self.search.higher_is_better else 1
        return sorted(rows, key=lambda row: (row["score"] is None, sign * (row["score"] or 0.0)))

    def _tell(self, name: str, row: Row) -> None:
        self.count += 1
        if self.on_result is not None:
            runs = sum(rung.rates * (rung.rivals + 1) for rung in self.plan.rungs)
            kinds = 1 + (not self.candidates or any(each.local for each in self.candidates))  # none are listed at first
            total = 2 * self.plan.steps[-1] + runs + len(self.rates) * kinds
            self.on_result(name, {"part": "validation", "metric": self.search.metric_name, **row}, self.count, total)
