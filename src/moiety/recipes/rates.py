"""Client learning rates: the one given, or the best of those given on validation rows.

As in appendix B.3 of Pillutla et al. 2022: a share of each client's training rows is kept for validation, the rate with
the best mean score on them (weighted by their number) is taken, and what is reported is trained anew on all training
rows. Test rows decide nothing. One seed serves; the rate of FedAvg is chosen first, and all others start from that
run. The finetuning of a split is chosen when it is all that is done (stages (a) and (c)), and is used after FedAlt and
FedSim too; those two, pFedMe and the longer FedAvg are chosen at the end of stage (b), each on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from moiety.recipes.running import Runner
from moiety.recipes.setting import FULL, Setting
from moiety.recipes.steps import LONGER, Step, continued, federated, finetuned, personalised, pfedme


@dataclass
class Chosen:
    """The rate of each step by its name, the validation scores behind those that were chosen, and the time it took."""

    rates: dict[str, float] = field(default_factory=dict)
    tried: dict[str, dict[float, float]] = field(default_factory=dict)
    seconds: float = 0.0

    def best(self, runner: Runner, name: str, rates: tuple[float, ...], make: Callable[[float], Step]) -> Step:
        """The step with the best of the rates, which is written down; where there is but one, nothing is run."""
        made = {lr: replace(make(lr), name=f"{name}-{lr:g}", train=False) for lr in rates}
        self.rates[name] = rates[0]
        if len(rates) > 1:
            scores = {lr: runner.run(step).score for lr, step in made.items()}
            sign = 1 if runner.higher_is_better else -1
            self.tried[name] = scores
            # Rounded, so that the last digits, which differ between engines, decide no tie: the first rate has it.
            known = {lr: round(sign * score, 6) if math.isfinite(score) else -math.inf for lr, score in scores.items()}
            self.rates[name] = max(rates, key=known.__getitem__)
        return made[self.rates[name]]


def choose(setting: Setting, runner: Runner) -> Chosen:
    """A rate for every family of steps; ``runner`` trains without the validation rows and scores on them."""
    stages, found = setting.stages, Chosen()
    base = found.best(runner, "fedavg", stages.lr, partial(federated, stages))
    later: dict[str, tuple[tuple[float, ...], Callable[[float], Step]]] = {}
    later[LONGER] = stages.personal_lr, partial(continued, stages)
    for split in (FULL, *setting.splits):
        later[f"{split}-finetune"] = stages.finetune_lr, partial(finetuned, stages, split)
        for method in ("pfedme",) if split == FULL else ("fedalt", "fedsim"):
            how = partial(pfedme, stages) if split == FULL else partial(personalised, stages, split, method)
            later[f"{split}-{method}"] = stages.personal_lr, how
    if any(len(rates) > 1 for rates, _ in later.values()):
        runner.run(base)
    for name, (rates, make) in later.items():
        found.best(runner, name, rates, lambda lr, make=make: replace(make(lr), start=base.name))  # type: ignore[misc]
    found.seconds = sum(ended.seconds for ended in runner.ended.values())
    return found
