"""Each client of a run chooses its model by the rule of ``evaluation.safeguard``; the choice is part of its state.

Held-out rows are the client's validation rows, and its training rows fold by fold: for each fold the algorithm's own
rule for new clients makes a model from the other folds. New clients have folds alone. Test rows are never looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from moiety import tree
from moiety.engines.base import RoundInfo
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.rows import Job, Rows, phase_rows
from moiety.errors import choice, must
from moiety.evaluation import Row
from moiety.evaluation.paired import RowScores
from moiety.evaluation.per_client import SHARED
from moiety.evaluation.predictive import Predictive
from moiety.evaluation.safeguard import WEIGHTS, Choice, Evidence, Population, choose, describe_population
from moiety.loop.evaluate import adapt_phases, cut_batches, score_examples
from moiety.loop.round import Loop
from moiety.random import generator, hash_words
from moiety.run.draws import Draws
from moiety.run.predict import current_state, newcomer_state
from moiety.task.mixing import mix_outputs, mix_parameters
from moiety.types import Algorithm, Batch, Params, Task, Tree

MIXTURES = ("predictions", "parameters")
FOLDS = 5
RIGHT_OR_WRONG = ("accuracy", "binary_accuracy", "token_accuracy")
LIKELIHOODS = ("cross_entropy", "binary_cross_entropy", "next_token")
MOST_TURNS = 20
"""At most how often the rule for new clients is applied to stand in for the turns of a trained client."""


@dataclass(frozen=True)
class Safeguard:
    """The choices of a run's clients, by name, and what they were made with.

    ``choices`` has the weight of each client's personal model (0 is the shared model), the posterior mean of its gain,
    the risk of a loss, and p-values. ``population`` is what the server sends, also to new clients. ``one_model`` is the
    one model for all where it was given; by default it is the run's shared model.
    """

    round: int
    alpha: float
    mix: str
    loss: str | None
    population: Population | None
    choices: dict[str, Choice] = field(repr=False)
    one_model: Params | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        weights = [each.weight for each in self.choices.values()]
        shared, own = sum(w == 0 for w in weights), sum(w == 1 for w in weights)
        words = f"{own} personal, {len(weights) - shared - own} mixed, {shared} shared"
        return f"Safeguard({len(weights)} clients: {words}; risk at most {self.alpha:g} each)"


class Pair:
    """The shared and the personal model of one client, and what any mixture of them scores."""

    def __init__(self, task: Task, loss: str | None, mix: str, shared: Params, personal: Params) -> None:
        self.task, self.loss, self.mix = task, loss, mix
        self.shared, self.personal = shared, personal

    def weights(self) -> tuple[float, ...]:
        """The mixtures that can be scored."""
        return WEIGHTS if self.mix == "parameters" or self.task.score_outputs is not None else WEIGHTS[-1:]

    def needs(self, weight: float) -> tuple[float, ...]:
        """The weights of the models whose outputs make those of the mixture: two for a mixture of predictions."""
        return (0.0, 1.0) if self.mix == "predictions" and 0 < weight < 1 else (weight,)

    def parameters(self, weight: float) -> Params:
        """The parameters of the mixture, where it has any."""
        hint = "It is of the predictions of two models: export gives both in one module."
        must(len(self.needs(weight)) == 1, "client", "one that chose no mixture of predictions", weight, hint)
        if weight in (0, 1):
            return self.personal if weight else self.shared
        return mix_parameters(self.shared, self.personal, weight)

    @torch.no_grad()
    def predict(self, batch: Batch, weight: float) -> torch.Tensor:
        """The outputs of the mixture."""
        outputs = [self.task.predict(self.parameters(w), batch) for w in self.needs(weight)]
        return outputs[0] if len(outputs) == 1 else mix_outputs(self.loss, outputs[0], outputs[1], weight)

    def score(self, columns: Batch, weight: float) -> RowScores:
        """The scores of rows with the mixture."""
        pieces = [score_examples(self.task, self._score(batch, weight), batch) for batch in cut_batches(columns)]
        loss, metric, counts = torch.cat(pieces, dim=1).cpu().numpy() if pieces else np.zeros((3, 0))
        return RowScores(loss, np.divide(metric, counts, out=np.zeros_like(metric), where=counts > 0), counts)

    @torch.no_grad()
    def _score(self, batch: Batch, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.needs(weight)) == 1:
            return self.task.scores(self.parameters(weight), batch)
        assert self.task.score_outputs is not None
        return self.task.score_outputs(self.predict(batch, weight), batch)

    def measure_gains(self, columns: Batch) -> np.ndarray:
        """The gains of rows over the shared model [measures, mixtures, rows]: metric, and where it fits likelihood."""
        before, sign = self.score(columns, 0), 1 if self.task.metric.higher_is_better else -1
        share = before.weight / max(float(before.weight.mean()), 1e-30) if len(before.weight) else before.weight
        after = [self.score(columns, w) for w in self.weights()]
        gains = [np.stack([sign * share * (each.metric - before.metric) for each in after])]
        if self.task.metric.name in RIGHT_OR_WRONG and self.loss in LIKELIHOODS:
            gains.append(np.stack([share * (np.exp(-each.loss) - np.exp(-before.loss)) for each in after]))
        return np.stack(gains)

    def measure_hint(self, columns: Batch) -> float:
        """How much lower the personal model's loss is on training rows."""
        return float(self.score(columns, 0).loss.mean() - self.score(columns, 1).loss.mean())


def _join(gains: Sequence[np.ndarray], hint: float) -> Evidence:
    """The evidence of several sets of held-out rows, of which the first are validation rows."""
    all_gains = np.concatenate(gains, axis=2)
    return Evidence(all_gains[0], hint, all_gains[1] if len(all_gains) > 1 else None, gains[0].shape[2])


@dataclass(frozen=True)
class Chooser:
    """Makes evidence and models for the clients of a run, and for new ones."""

    loop: Loop
    loss: str | None
    mix: str
    one_model: Params | None = None
    turns: int | None = None
    """How often a client was asked on average, where the loop does not know it."""

    def __post_init__(self) -> None:
        choice("mix", self.mix, MIXTURES)

    @classmethod
    def of(cls, loop: Loop, loss: str | None, guard: Safeguard | None) -> Chooser:
        """For a run with these choices, or without any."""
        return cls(loop, loss, MIXTURES[0]) if guard is None else cls(loop, loss, guard.mix, guard.one_model)

    @property
    def problem(self) -> Problem:
        """The run's problem."""
        return self.loop.problem

    def broadcast(self) -> Params:
        """What the server sends to clients now."""
        return self.problem.broadcast(self.loop.algorithm, self.loop.progress.server)

    def pair(self, state: Tree) -> Pair:
        """The models of a client with that state."""
        received, algorithm = self.broadcast(), self.loop.algorithm
        shared = self.one_model or self.problem.shared_model(algorithm, received)
        personal = self.problem.compose(*algorithm.personal_model(received, state))
        return Pair(self.problem.task, self.loss, self.mix, shared, personal)

    def pair_of(self, at: int) -> Pair:
        """The models of the client at a position."""
        return self.pair(current_state(self.loop, at, self.loop.algorithm))

    def columns(self, at: int, part: str) -> Batch:
        """The rows of the client at a position."""
        start, stop = self.problem.data.rows(at, part)
        return {name: column[start:stop] for name, column in self.problem.columns.items()}

    def gather(self, clients: Sequence[int]) -> list[Evidence]:
        """The evidence of clients of the run."""
        folds = self._fold_clients(clients)
        evidence = []
        for at in clients:
            pair = self.pair_of(at)
            gains = [pair.measure_gains(self.columns(at, "validation")), *folds[at]]
            evidence.append(_join(gains, pair.measure_hint(self.columns(at, "train"))))
        return evidence

    def _fold_clients(self, clients: Sequence[int]) -> dict[int, list[np.ndarray]]:
        """Gains of training rows by client, each with a model that was made without it."""
        loop, problem, algorithm = self.loop, self.problem, self.loop.algorithm
        engine, received = loop.get_engine(), self.broadcast()
        folds = {at: self._deal(problem.data.rows(at, "train"), at) for at in clients}
        gains: dict[int, list[np.ndarray]] = {at: [] for at in clients}
        for k in range(FOLDS):
            remaining = [at for at in clients if k < len(folds[at])]
            states = [problem.first_state(algorithm)] * len(remaining)
            for turn in range(self._count_turns() if remaining else 0):
                jobs = [
                    self._make_job(at, folds[at], k, state, turn) for at, state in zip(remaining, states, strict=True)
                ]
                states = tree.clone(list(engine.map("adapt", jobs, received, RoundInfo(loop.progress.round))))
            for at, state in zip(remaining, states, strict=True):
                rows = torch.from_numpy(folds[at][k]).to(problem.device)
                columns = {name: column.index_select(0, rows) for name, column in problem.columns.items()}
                gains[at].append(self.pair(state).measure_gains(columns))
        return gains

    def _deal(self, span: tuple[int, int], at: int) -> list[np.ndarray]:
        """A client's training rows in folds; none for a single row."""
        rows = generator(self.problem.seed, "safeguard", at).permutation(np.arange(*span))
        return [np.sort(fold) for fold in np.array_split(rows, min(FOLDS, len(rows)))] if len(rows) > 1 else []

    def _make_job(self, at: int, folds: Sequence[np.ndarray], k: int, state: Tree, turn: int) -> Job:
        """A client's turn by the rule for new clients, without the rows of a fold."""
        others = np.sort(np.concatenate([fold for j, fold in enumerate(folds) if j != k]))
        words, seed = ("safeguard", self.loop.progress.round + turn, k, at), self.problem.seed
        plans = {
            name: phase_rows(phase._replace(walk=False), 0, len(others), name, *words, seed=seed)
            for name, phase in adapt_phases(self.loop.algorithm).items()
        }
        rows = {name: Rows(others[plan.order], plan.sizes) for name, plan in plans.items()}
        return Job(at, rows, len(others), state, self.problem.client_key(at), hash_words("safeguard", turn, k))

    def gather_newcomer(self, data: Mapping[str, Any], state: Tree, passes: int) -> Evidence:
        """The evidence of a client never seen, whose model with that state is made from ``data``."""
        rows = {name: np.asarray(column) for name, column in data.items()}
        pair = self.pair(state)
        gains = [pair.measure_gains(self.as_tensors({name: column[:0] for name, column in rows.items()}))]
        for fold in self._deal((0, len(next(iter(rows.values())))), -1):
            others = {name: np.delete(column, fold, axis=0) for name, column in rows.items()}
            without = self.pair(newcomer_state(self.loop, self.loss, others, passes))
            gains.append(without.measure_gains(self.as_tensors({name: column[fold] for name, column in rows.items()})))
        return _join(gains, pair.measure_hint(self.as_tensors(rows)))

    def weigh_newcomer(
        self, guard: Safeguard | None, data: Mapping[str, Any] | None, state: Tree, passes: int
    ) -> float:
        """How much of its own model, with that state, a client never seen uses."""
        if guard is None or data is None:
            return 1.0
        evidence, weights = self.gather_newcomer(data, state, passes), self.pair(state).weights()
        return choose(evidence, guard.population, alpha=guard.alpha, weights=weights).weight

    def mix_prediction(self, own: Predictive, state: Tree | Draws, columns: Batch, weight: float) -> Predictive:
        """What a client predicts that gives its own model, with these outputs and that state, a weight."""
        if weight == 1:
            return own
        if self.mix == "parameters" and weight and not isinstance(state, Draws) and len(own.outputs) == 1:
            outputs = self._predict_in_batches(self.pair(state), columns, weight)[None]
        else:
            shared = self._predict_in_batches(self.pair(self.problem.first_state(self.loop.algorithm)), columns, 0)
            mixtures = [mix_outputs(self.loss, shared, each, weight) for each in torch.from_numpy(own.outputs)]
            outputs = torch.stack(mixtures)
        return replace(own, outputs=outputs.double().cpu().numpy())

    def _predict_in_batches(self, pair: Pair, columns: Batch, weight: float) -> torch.Tensor:
        return torch.cat([pair.predict(batch, weight) for batch in cut_batches(columns)]).double()

    def as_tensors(self, columns: Mapping[str, np.ndarray]) -> Batch:
        """Rows as the problem's task takes them."""
        return to_tensors(columns, self.problem.task, self.problem.device)

    def _count_turns(self) -> int:
        return count_turns(self.loop) if self.turns is None else self.turns


def count_turns(loop: Loop) -> int:
    """How often a client was asked on average, as far as folds repeat it."""
    turns = loop.progress.round * loop.cohort / len(loop.problem.data)
    return min(MOST_TURNS, max(1, round(turns))) if loop.algorithm.stateful else 1


def check_choice(problem: Problem, algorithm: Algorithm) -> None:
    """Refuse a safeguard where no client has anything of its own."""
    own = bool(tree.leaves(problem.first_state(algorithm)))
    must(own, "safeguard", "left out for an algorithm without a personal part", algorithm.name)


def choose_models(chooser: Chooser, alpha: float) -> Safeguard:
    """Let each client choose; the population's numbers come from all of them."""
    problem, algorithm = chooser.problem, chooser.loop.algorithm
    check_choice(problem, algorithm)
    if chooser.one_model is None and not problem.shares_whole_model(algorithm, chooser.broadcast()):
        text = (
            f"Clients are compared with the shared part of {algorithm.name}, which may be worse than one model for all"
        )
        warnings.warn(f"{text}: give a run of fedavg, run.safeguard(one_model=...).", UserWarning, stacklevel=4)
    names = [str(name) for name in problem.data.ids]
    evidence = chooser.gather(range(len(names)))
    population = describe_population(evidence, alpha)
    weights = chooser.pair(problem.first_state(algorithm)).weights()
    choices = {
        name: choose(each, population, alpha=alpha, weights=weights) for name, each in zip(names, evidence, strict=True)
    }
    now = chooser.loop.progress.round
    return Safeguard(now, alpha, chooser.mix, chooser.loss, population, choices, chooser.one_model)


def take_one_model(problem: Problem, run: Any) -> Params | None:
    """The shared model of another run, on the model of this one; what that model does not have is as it was first."""
    if run is None:
        return None
    must(
        callable(getattr(run, "shared_parameters", None)), "one_model", "a run, as moiety.fit gives it", f"{run!r:.60}"
    )
    values = run.shared_parameters()
    first = problem.task.init
    odd = [name for name, p in values.items() if name not in first or first[name].shape != p.shape]
    must(not odd, "one_model", "a run on the same model", f"one whose {odd[:1]} is not in this run's")
    return {name: values.get(name, p) for name, p in first.items()}


def weight_of(guard: Safeguard | None, client: object) -> float:
    """The weight of a client's personal model; 1 for a client that did not choose."""
    return guard.choices[str(client)].weight if guard is not None and str(client) in guard.choices else 1.0


def guard_rows(loop: Loop, loss: str | None, guard: Safeguard, rows: Sequence[Row], part: str) -> list[Row]:
    """Rows of a run's clients with the scores of the models that they chose, and of the one model for all.

    ``personal_share`` is how much of its own model a client uses, ``risk`` how likely it is to lose by that.
    """
    chooser, data = Chooser.of(loop, loss, guard), loop.problem.data
    result = []
    for row in rows:
        at = data.position(row["client"])
        selection = guard.choices[row["client"]]
        if row["n_test"]:
            row = _score_again(chooser, chooser.pair_of(at), chooser.columns(at, part), selection.weight, row)
        result.append({**row, "personal_share": selection.weight, "risk": selection.risk})
    return result


def _score_again(chooser: Chooser, pair: Pair, columns: Batch, weight: float, row: Row) -> Row:
    """A client's row with the scores of its mixture, and of the one model for all."""
    task, result = chooser.problem.task, dict(row)
    for before, w in (("", weight), (SHARED, 0.0)):
        scores = pair.score(columns, w)
        if not scores.weight.any():
            continue
        result |= {before + "loss": float(scores.loss.mean())}
        result |= {before + "metric": float(np.average(scores.metric, weights=scores.weight))}
        if task.sets:
            outputs = torch.cat([pair.predict(batch, w) for batch in cut_batches(columns)])
            values = {before + metric.name: float(metric.compute(outputs, columns)) for metric in task.sets}
            result |= values | ({before + "metric": values[before + task.deciding.name]} if task.set_decides else {})
    gain = (result["metric"] - result["shared_metric"]) * (1 if task.deciding.higher_is_better else -1)
    return {**result, "gain": gain, "hurt": gain < 0}


def guard_unseen(loop: Loop, loss: str | None, guard: Safeguard, rows: Sequence[Row], part: str) -> list[Row]:
    """The same for clients that training never saw; one without a model keeps its row."""
    data = loop.problem.data.unseen
    if data is None or not rows:
        return list(rows)
    chooser, result = Chooser.of(loop, loss, guard), []
    for row in rows:
        if row["n_test"] and not np.isnan(row["metric"]):
            train, test = (data.at(data.position(row["client"]), each) for each in ("train", part))
            state = newcomer_state(loop, loss, train, 1)
            weight = chooser.weigh_newcomer(guard, train, state, 1)
            row = _score_again(chooser, chooser.pair(state), chooser.as_tensors(test), weight, row)
            row["personal_share"] = weight
        result.append(row)
    return result
