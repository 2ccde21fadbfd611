"""Steps that are begun, broken off and continued; claims from numbers made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from moiety.experiments import count_verdicts
from moiety.experiments.page import show_section
from moiety.experiments.runner import Runner
from moiety.reports import is_percentage
from moiety_recipes.fedalt_claims import Comparison
from moiety_recipes.fedalt_claims import summarise as summarise_all
from moiety_recipes.fedalt_images import plan
from moiety_recipes.fedalt_page import compare_settings, show_setting
from moiety_recipes.fedalt_stages import Sweep, build_cell, finetune, list_steps, personalise, train_together

SETTING = plan("ci").settings[0]
NAMES = ["fedavg", "fedavg-longer", "full-finetune", "full-pfedme"]
NAMES += [f"{split}-{how}" for split in SETTING.splits for how in ("finetune", "fedalt", "fedsim")]


def runner(folder, watch=lambda name, place: None):
    return Runner(folder, "sequential", watch=watch)


def cell(step):
    return build_cell(SETTING, SETTING.data(0).with_validation_in_train(), step, 3)


def test_a_step_that_was_broken_off_goes_on_as_if_nothing_had_been(tmp_path):
    """In memory and without a break, against runs in folders with a break after the first of three rounds of FedAlt."""
    stages = replace(SETTING.stages, personal_rounds=3)
    chain = [train_together(stages, 0.1), personalise(stages, "output", "fedalt", 0.1)]
    chain.append(finetune(stages, "output", 0.1, chain[1].name))
    whole = runner(None)
    expected = [whole.run(cell(step)) for step in chain]

    def break_off(name, place):
        def on_round(run, record):
            if "fedalt" in name:
                raise KeyboardInterrupt

        return on_round

    first = runner(tmp_path, break_off)
    first.run(cell(chain[0]))
    with pytest.raises(KeyboardInterrupt):
        first.run(cell(chain[1]))
    assert not (tmp_path / "digits/seed-3/output-fedalt.json").exists()
    calls = []
    again = runner(tmp_path, lambda name, place: lambda run, record: calls.append((name, record.round)))
    results = [again.run(cell(step)) for step in chain]
    assert calls == [
        ("digits seed 3 output-fedalt", 2),
        ("digits seed 3 output-fedalt", 3),
        ("digits seed 3 output-fedalt-final", 1),
    ]
    for ours, theirs in zip(results, expected, strict=True):
        assert (ours["clients"], ours["train"]) == (theirs["clients"], theirs["train"])


def test_rounds_keep_the_ratio_of_the_stages():
    stages = plan("paper").settings[0].stages
    assert (stages.with_rounds(100).rounds, stages.with_rounds(100).personal_rounds) == (100, 25)
    assert stages.with_rounds(1).personal_rounds == 1


def test_a_sweep_does_not_run_what_other_steps_have():
    sweeps = (
        Sweep(option="weight_decay", split="output", values=(0.0, 0.5)),
        Sweep(option="pull", split="full", values=(0.0, 0.1, 1.0)),
    )
    setting = replace(SETTING, stages=replace(SETTING.stages, stateless=None, sweeps=sweeps))
    names = [step.name for step in list_steps(setting, dict.fromkeys(NAMES, 0.1))]
    assert len(set(names)) == len(names)
    assert names[-2:] == ["output-weight_decay-0.5", "full-pull-1"]


def rows(*metrics):
    rest = {"n": 9, "n_test": 4, "loss": 1.0, "shared_loss": 1.0, "shared_metric": 0.5, "gain": 0.0}
    return [{"client": f"c{i}", "metric": m, **rest} for i, m in enumerate(metrics)]


def build_comparison(scores, *, seeds=3, metric="accuracy"):
    """Two clients that both have the score given for a step and seed; 0.5 for all other steps and for training rows."""
    results = {}
    for seed in range(seeds):
        for step in list_steps(SETTING, dict.fromkeys(NAMES, 0.1)):
            value = scores[step.name][seed] if step.name in scores else 0.5
            result = {"clients": rows(value, value), "train": rows(0.5, 0.5), "metric": metric}
            results["digits", seed, step.name] = result
    sizes = {"shared": 90, "bytes": 1, "megabytes": 1.0}
    memory = [{"row": name, "personal": 10, "saving": 0.25, **sizes} for name in ("input", "output", "adapter")]
    memory.append({"row": "full personalisation", "personal": 100, "saving": 0.0, **sizes})
    results["digits", "memory"] = {"rows": memory}
    for lr, value in ((0.1, 0.5), (9.0, math.nan)):
        results["digits", "tuning", f"fedavg-{lr:g}"] = {"clients": rows(value), "metric": metric}
    return Comparison(SETTING, range(seeds), results)


def summary(comparison):
    return summarise_all(comparison, {"fedavg": ((0.1, 9.0), None)})


SCORES = {
    "fedavg": (0.40, 0.41, 0.42),
    "input-fedalt-final": (0.52, 0.53, 0.525),  # minus 0.5: 0.02, 0.03, 0.025
    "output-fedalt-final": (0.48, 0.47, 0.475),  # minus 0.5: -0.02, -0.03, -0.025
    "adapter-fedalt-final": (0.51, 0.49, 0.505),  # minus 0.5: 0.01, -0.01, 0.005
}


def verdicts(table):
    return {claim["claim"]: claim["verdict"] for claim in table["claims"]}


def test_claims_follow_from_the_intervals():
    """Differences 0.02, 0.03, 0.025: mean 0.025, standard deviation 0.005, and 4.3027 x 0.005 / sqrt(3) = 0.01242.

    So FedAlt is better than FedSim by 0.0126 to 0.0374 with the input layer and worse with the output layer. With the
    adapters the mean is 0.00167 and the deviation 0.0104: from -0.024 to 0.028, which decides nothing. The input layer
    against full personalisation (0.5) is above -0.01. Against the adapters it is ahead by 0.01, 0.04, 0.02: mean
    0.0233, deviation 0.0153, half 0.0379, not decided.
    """
    table = summary(build_comparison(SCORES))
    claims = {claim["claim"]: claim for claim in table["claims"]}
    row = claims["FedAlt beats FedSim: input"]
    assert (row["low"], row["high"]) == pytest.approx((0.025 - 0.01242, 0.025 + 0.01242), abs=1e-5)
    answers = verdicts(table)
    assert answers["FedAlt beats FedSim: input"] == "holds"
    assert answers["FedAlt beats FedSim: output"] == "does not hold"
    assert answers["FedAlt beats FedSim: adapter"] == "not decided at this scale"
    assert answers["the best split (input) is as good as full personalisation (finetune)"] == "holds"
    assert answers["personalisation (input) beats FedAvg"] == "holds"
    assert answers["the best split is input, ahead of adapter"] == "not decided at this scale"
    assert answers["final finetuning changes FedSim little: input"] == "holds"  # 0 in every seed
    assert (
        answers["final finetuning changes FedAlt little: input"] == "does not hold"
    )  # at least 0.0126, more than 0.01
    assert answers["some clients are hurt (input)"] == "does not hold"
    assert answers["no client is worse on its training rows (input)"] == "holds"
    assert answers["every split needs less memory on a device than full personalisation"] == "holds"
    counts = [list(answers.values()).count(v) for v in ("holds", "does not hold", "not decided at this scale")]
    text = "{} of {} claims hold, {} do not, {} are not decided at this scale."
    assert count_verdicts(table["claims"]) == text.format(counts[0], sum(counts), *counts[1:])


def test_where_less_is_better_the_same_numbers_say_the_opposite():
    """The output layer has the fewest errors: 0.03, 0.02, 0.03 fewer than the adapters, 0.0267 with half 0.0143."""
    table = summary(build_comparison(SCORES, metric="word_error_rate"))
    answers = verdicts(table)
    assert is_percentage("word_error_rate")
    assert answers["FedAlt beats FedSim: input"] == "does not hold"
    assert answers["FedAlt beats FedSim: output"] == "holds"
    assert answers["the best split is output, ahead of adapter"] == "holds"
    assert answers["personalisation (output) beats FedAvg"] == "does not hold"
    assert answers["some clients are hurt (output)"] == "holds"  # 0.48 errors where FedAvg has 0.40


def test_one_seed_decides_nothing():
    answers = verdicts(summary(build_comparison(SCORES, seeds=1)))
    assert answers["FedAlt beats FedSim: input"] == "not decided at this scale"


def test_a_page_shows_what_it_was_given():
    comparison = build_comparison(SCORES)
    page = "\n\n".join(show_section(section) for section in show_setting(summary(comparison), comparison))
    assert "| input | 10 (10.00%) | 50.00 [50.00, 50.00] | 93.29 | 52.50 [51.26, 53.74] | 93.62 |" in page
    assert "| fedavg | 0.1 (end of the grid) | 0.1: 50.00, 9: - |" in page
    assert "| input | 1.00 | 25% | 142 |" in page
    assert "| FedAlt, output | 0.0% [0.0%, 0.0%] | 0 | 0 | 2 |" in page


def test_the_best_split_across_settings():
    def table(name, best, other, verdict):
        return {
            "setting": name,
            "claims": [{"claim": f"the best split is {best}, ahead of {other}", "verdict": verdict}],
        }

    one = table("one", "input", "output", "holds")
    assert "**holds**" in show_section(compare_settings([one, table("two", "output", "input", "holds")]))
    assert "**does not hold**" in show_section(compare_settings([one, table("two", "input", "adapter", "holds")]))
    assert "**not decided at this scale**" in show_section(
        compare_settings([one, table("two", "output", "input", "not decided at this scale")])
    )
