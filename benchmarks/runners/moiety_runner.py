"""moiety by its public surface; only finetuning (no training round at all) calls the engine itself."""

from __future__ import annotations

import inspect
import time
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from torch import nn

import moiety as mo
from benchmarks.runners.common import Clock, arguments, mean_loss, report, tensors, warm_up
from benchmarks.work import BATCH, EXAMPLES, SEED, Arrays, Work, module
from moiety.loop import round as loop_of_rounds


def algorithm_of(work: Work) -> mo.Algorithm:
    """What ``work.kind`` names; FedAlt's personal phase alone is finetuning."""
    epoch = mo.sgd(work.lr, steps=EXAMPLES // BATCH, batch_size=BATCH, shuffle=False)
    if work.kind == "average":
        return mo.fedavg(shared=epoch)
    if work.kind == "chains":
        # The prior's step is given: an earlier commit, which runs this too, has another one where it is left open.
        return mo.fedpop(shared=work.lr, personal=mo.kernel.langevin(step=1e-4), samples=10, prior_lr=work.lr)
    if work.kind == "sparse":
        return mo.fedspa(shared=epoch)
    if work.kind == "lora":
        return mo.fedalt(shared=epoch, personal=epoch)
    return mo.fedalt(
        shared=mo.sgd(work.lr, epochs=max(1, work.body_epochs), batch_size=BATCH, shuffle=False),
        personal=mo.sgd(work.lr, epochs=work.head_epochs, batch_size=BATCH, shuffle=False),
    )


def split_of(work: Work, model: nn.Module) -> mo.Split | None:
    """Nothing personal, low-rank updates, or the head."""
    if work.kind in ("average", "sparse"):
        return None
    return mo.split.lora(model, rank=4) if work.kind == "lora" else mo.split.output_layer(model)


def train(arrays: Arrays, model: nn.Module, fed: mo.FederatedData, options: Namespace) -> None:
    """``mo.fit``; the last round, which ends with the evaluation, is not among those timed."""
    work, clock = arrays.work, Clock()
    split = split_of(work, model)
    total = warm_up(work) + options.rounds
    choosing = time_choice()

    def tick(run: mo.Run, record: object) -> bool:
        clock.tick()
        return len(clock.ends) > total

    told: dict[str, Any] = {"callbacks": [tick]}
    if "callbacks" not in inspect.signature(mo.fit).parameters:  # an earlier commit
        told = {"on_round": lambda record, rounds: clock.tick()}
    run = mo.fit(
        model,
        fed,
        algorithm_of(work),
        split=split,
        rounds=max(total, options.planned),
        cohort=work.cohort,
        seed=SEED,
        engine=options.engine,
        settings=mo.Settings(evaluate_every=max(total, options.planned), partial=options.partial),
        **told,
    )
    if run._loop.problem.partial != options.partial:
        raise SystemExit("fit did not do as `partial` says")
    row = run.history[-1]
    personal = None if work.kind == "average" else row["loss"]
    seconds = clock.seconds(work, options.rounds - 1)
    report(
        seconds,
        row["shared_loss"],
        personal,
        engine=run.engine,
        version=mo.__version__,
        first_round=clock.first_round(),
        choosing=sum(choosing),
    )


def time_choice() -> list[float]:
    """The seconds that go into the choice of an engine, as they come."""
    seconds: list[float] = []
    pick = getattr(loop_of_rounds, "pick_engine", None)
    if pick is None:  # an earlier commit
        return seconds

    def pick_and_time(*given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        chosen = pick(*given, **options)
        seconds.append(time.perf_counter() - began)
        return chosen

    loop_of_rounds.pick_engine = pick_and_time
    return seconds


def finetune(arrays: Arrays, model: nn.Module, fed: mo.FederatedData, options: Namespace) -> None:
    """The heads of all clients by FedAlt's own rule for a client that keeps no state, on one thread as ``fit`` does."""
    # Here, since earlier commits, which run other works, do not have all of them.
    from moiety.engines.auto import ENGINES, make_engine, pick_engine
    from moiety.engines.base import ClientFunction, RoundInfo
    from moiety.engines.problem import Problem, to_tensors
    from moiety.loop.costs import flops_per_example, job_flops
    from moiety.loop.evaluate import client_functions
    from moiety.task import from_module

    torch.set_num_threads(1)
    work, algorithm = arrays.work, algorithm_of(arrays.work)
    task = from_module(model, loss="cross_entropy")
    columns = to_tensors(fed.columns, task, torch.device("cpu"))
    problem = Problem(task, mo.split.output_layer(model), fed, columns, SEED, partial=options.partial)
    # Engines choose by what is called train: here that is the personal phase alone.
    functions = client_functions(problem, algorithm) | {"train": ClientFunction(algorithm.adapt, ("personal",))}
    received = algorithm.broadcast(problem.first_server(algorithm))
    states = [problem.first_state(algorithm) for _ in range(work.clients)]
    phases = {"personal": algorithm.phases["personal"]}
    jobs = problem.make_jobs(phases, range(work.clients), states, "adapt", 0, part="train")
    if options.engine in ENGINES:
        engine = make_engine(options.engine, problem, functions, None)
    else:
        costs = flops_per_example(problem, algorithm, received, states[0])
        flops, info = [job_flops(costs, job)[0] for job in jobs], RoundInfo()
        left = {"flops": flops, "rounds": options.rounds, "workers": None}
        engine, _ = pick_engine(options.engine, problem, functions, jobs, received, info, **left)
    engine.map("train", jobs[:2], received, RoundInfo())
    clock = Clock()
    for _ in range(options.rounds):
        adapted = engine.map("train", jobs, received, RoundInfo())
        clock.tick()
    x, y = tensors(arrays)
    losses = []
    for client, state in enumerate(adapted):
        model.load_state_dict(problem.compose(*algorithm.personal_model(received, state)))
        losses.append(mean_loss(model, x[arrays.rows(client)], y[arrays.rows(client)]))
    engine.close()
    model.load_state_dict(task.init)
    shared, seconds = mean_loss(model, x, y), clock.seconds(work, options.rounds)
    report(
        seconds,
        shared,
        float(np.mean(losses)),
        engine=engine.name,
        version=mo.__version__,
        first_round=clock.first_round(),
    )


def main() -> None:
    """Run one work."""
    options, arrays = arguments()
    owner = np.repeat(np.arange(arrays.work.clients), EXAMPLES)
    fed = mo.data.from_arrays({"x": arrays.x, "y": arrays.y}, client=owner, test=0.0)
    run = finetune if arrays.work.kind == "finetune" else train
    run(arrays, module(arrays.work, arrays.weights), fed, options)


if __name__ == "__main__":
    main()
