"""Adam, AdamW, accumulation and decay within a phase against PyTorch's own optimisers on ordinary modules."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import moiety as mo
from moiety.errors import MoietyError
from moiety.local.descent import train
from moiety.local.verbs import autograd_gradient
from moiety.run.build import algorithm_from
from moiety.task import backprop_bytes, from_module
from moiety.task.block import block_gradient
from moiety.types import Work

CLOSE = {"rtol": 1e-12, "atol": 1e-13}
FEATURES, CLASSES, LR, EPOCHS = 4, 3, 0.05, 2
ROWS = (17, 6, 3)
"""The rows of three clients. In batches of 6 the steps of a phase are 6, 2 and 2."""
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
OPTIONS = [
    ("adam", {}),
    ("adam", {"betas": (0.5, 0.8), "eps": 1e-3, "weight_decay": 0.3}),
    ("adam", {"weight_decay": 0.1, "pull": 0.4, "clip": 0.2}),
    ("adamw", {}),
    ("adamw", {"betas": (0.7, 0.9), "weight_decay": 0.5, "pull": 0.4, "clip": 0.2, "lr_decay": "cosine"}),
    ("adamw", {"lr_decay": "linear", "accumulate": 3}),
    ("sgd", {"lr_decay": "linear", "weight_decay": 0.1}),
    ("sgd", {"lr_decay": "cosine", "momentum": 0.9, "accumulate": 2}),
    ("sgd", {"accumulate": 3, "clip": 0.2, "pull": 0.4}),
]
IDS = ["-".join([name, *options]) for name, options in OPTIONS]


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def make_rows(count: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=draw, dtype=torch.float64)
    return {"x": x, "y": torch.randint(CLASSES, (count,), generator=draw)}


def cut(rows: dict[str, torch.Tensor], size: int = 6, epochs: int = EPOCHS) -> list[dict[str, torch.Tensor]]:
    count = len(rows["y"])
    return [{n: c[at : at + size] for n, c in rows.items()} for _ in range(epochs) for at in range(0, count, size)]


def train_by_torch(module, batches, name, *, pull=0.0, clip=None, lr_decay="constant", accumulate=1, **options):
    """The values of all parameters after each step; a step is on the whole batch, however it is accumulated."""
    module = copy.deepcopy(module)
    centre = {n: torch.full_like(p, 0.5) for n, p in module.named_parameters()}
    optimiser = TORCH[name](module.parameters(), lr=LR, **options)
    rate = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, len(batches)),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches)),
    }[lr_decay]()
    after = []
    for batch in batches:
        optimiser.zero_grad()
        functional.cross_entropy(module(batch["x"]), batch["y"]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        for n, p in module.named_parameters():
            p.grad.add_(p.detach() - centre[n], alpha=pull)
        optimiser.step()
        rate.step()
        after.append({n: p.detach().clone() for n, p in module.named_parameters()})
    return after


def work_for(module, gradient, examples):
    common = {"shared": (), "personal": (), "compose": None, "parts": None, "batches": None, "scale": 1.0}
    return Work(task=from_module(module, loss="cross_entropy"), gradient=gradient, examples=examples, **common)


def make_value(name, options):
    size = 6 // options.get("accumulate", 1)
    return getattr(mo, name)(LR, epochs=EPOCHS, batch_size=size, **options)


def train_single(module, batches, how, examples):
    work = work_for(module, autograd_gradient, torch.tensor(float(examples), dtype=torch.float64))
    init, centre = work.task.init, {n: torch.full_like(p, 0.5) for n, p in work.task.init.items()}
    before = {n: p.clone() for n, p in init.items()}
    with torch.no_grad():
        new, _ = train(work, init, batches, {tuple(init): how}, centre=centre)
    assert all(torch.equal(p, before[n]) for n, p in init.items()), "the given model is not changed"
    return new


def train_block(module, clients, how):
    """The clients side by side; what a client computes from padding alone is not finite."""
    steps, width = max(map(len, clients)), max(len(b["y"]) for batches in clients for b in batches)
    x = torch.full((len(clients), steps, width, FEATURES), math.inf, dtype=torch.float64)
    y, mask = torch.zeros(x.shape[:3], dtype=torch.int64), torch.zeros(x.shape[:3], dtype=torch.bool)
    for c, batches in enumerate(clients):
        for k, batch in enumerate(batches):
            n = len(batch["y"])
            x[c, k], x[c, k, :n], y[c, k, :n], mask[c, k, :n] = batch["x"][0], batch["x"], batch["y"], True

    def one(x, y, mask, examples):
        work = work_for(module, block_gradient, examples)
        centre = {n: torch.full_like(p, 0.5) for n, p in work.task.init.items()}
        batches = [{"x": x[k], "y": y[k], "mask": mask[k]} for k in range(steps)]
        return train(work, work.task.init, batches, {tuple(work.task.init): how}, centre=centre)[0]

    with torch.no_grad():
        return vmap(one)(x, y, mask, torch.tensor(ROWS, dtype=torch.float64))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=IDS)
def test_steps_are_those_of_torch(name, options):
    module, how = make_model(), make_value(name, options)
    clients = [cut(make_rows(n, c)) for c, n in enumerate(ROWS)]
    block = train_block(module, clients, how)
    for c, batches in enumerate(clients):
        after = train_by_torch(module, batches, name, **options)
        for steps in range(1, len(batches) + 1) if c == 0 else [len(batches)]:
            single = train_single(module, batches[:steps], how, ROWS[c])
            for n, p in after[steps - 1].items():
                torch.testing.assert_close(single[n], p, **CLOSE)
        for n, p in after[-1].items():
            torch.testing.assert_close(block[n][c], p, **CLOSE)
            assert not block[n].requires_grad


def test_a_step_has_the_rows_of_all_its_micro_batches_and_the_memory_of_one():
    sizes = []
    module = make_model()
    module.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    rows = make_rows(17, 0)
    train_single(module, cut(rows, 12, 1), mo.sgd(LR, batch_size=3, accumulate=4), 17)
    assert sizes == [3, 3, 3, 3, 3, 2]
    sizes.clear()
    train_single(module, [rows], mo.sgd(LR, batch_size="all", accumulate=4), 17)
    assert sizes == [5, 5, 5, 2]
    assert mo.fedavg(shared=mo.sgd(LR, batch_size=3, accumulate=4)).phases["local"].batch_size == 12


def test_running_statistics_move_with_every_micro_batch():
    """As where a loop in PyTorch calls the module on one micro-batch after the other before it steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    rows, twin = make_rows(8, 0), copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(twin.parameters(), lr=LR)
    for piece in cut(rows, 4, 1):
        (functional.cross_entropy(twin(piece["x"]), piece["y"]) / 2).backward()
    optimiser.step()
    new = train_single_parameters(module, [rows], mo.sgd(LR, batch_size=4, accumulate=2))
    for n, p in twin.state_dict().items():
        torch.testing.assert_close(new[n], p, **CLOSE)


def test_batchnorm_meets_no_micro_batch_of_one_row():
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    fed = mo.data.from_clients({"one": make_rows(9, 0)}, test=0)
    for size, hint in (
        (4, r"4 \(times 2\) for the 9 rows of client one\. The next that fits is 5"),
        ("all", "all for"),
    ):
        how = mo.sgd(LR, batch_size=size, accumulate=2 if size == 4 else 8)
        with pytest.raises(MoietyError, match=f"^`batch_size` must be .*, got {hint}"):
            mo.fit(module, fed, mo.fedavg(shared=how), loss="cross_entropy", rounds=1)


def train_single_parameters(module, batches, how):
    work = work_for(module, autograd_gradient, torch.tensor(8.0, dtype=torch.float64))
    names = tuple(n for n, _ in module.named_parameters())
    return train(work, work.task.init, batches, {names: how})[0]


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("name", "options"), [OPTIONS[4], OPTIONS[5]], ids=[IDS[4], IDS[5]])
def test_a_run_on_clients_of_unequal_size_is_the_mean_of_torch(engine, name, options):
    """One round of FedAvg, whose clients each train as PyTorch would; without a pull, which FedAvg does not have."""
    options = {key: value for key, value in options.items() if key != "pull"}
    module, clients = make_model(), [make_rows(n, c) for c, n in enumerate(ROWS)]
    fed = mo.data.from_clients(dict(enumerate(clients)), test=0)
    how = make_value(name, options | {"shuffle": False})
    run = mo.fit(module, fed, mo.fedavg(shared=how), loss="cross_entropy", rounds=1, seed=0, engine=engine)
    ends = [train_by_torch(module, cut(rows), name, **options)[-1] for rows in clients]
    for n, p in run.shared_parameters().items():
        mean = sum(len(rows["y"]) * end[n] for rows, end in zip(clients, ends, strict=True)) / sum(ROWS)
        torch.testing.assert_close(p, mean, **CLOSE)


class Checkpointed(nn.Module):
    """The hidden layer keeps nothing for the backward pass, and is run again there."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__()
        self.inner, self.keep = make_model(), keep

    def hidden(self, x):
        return torch.tanh(self.inner[1](self.inner[0](x)).exp())

    def forward(self, x):
        return self.inner[2](self.hidden(x) if self.keep else checkpoint(self.hidden, x, use_reentrant=False))


def test_a_model_that_checkpoints_activations_trains_as_in_torch():
    """What is run again in the backward pass has the parameters of this step, not those that the module was given."""
    module, rows = Checkpointed(), make_rows(17, 0)
    expected = train_by_torch(Checkpointed(keep=True), cut(rows), "adamw")[-1]
    how = mo.adamw(LR, epochs=EPOCHS, batch_size=6, shuffle=False)
    fed = mo.data.from_clients({"one": rows}, test=0)
    options = {"loss": "cross_entropy", "rounds": 1}
    run = mo.fit(module, fed, mo.fedavg(shared=how), engine="sequential", **options)
    for n, p in run.shared_parameters().items():
        torch.testing.assert_close(p, expected[n], **CLOSE)
    with pytest.raises(MoietyError, match=r"^`engine` must be able to vectorise this model, got ") as error:
        mo.fit(module, fed, mo.fedavg(shared=how), engine="vectorised", **options)
    assert "\n" not in str(error.value)
    tasks = [from_module(each, loss="cross_entropy") for each in (module, Checkpointed(keep=True))]
    less, more = (backprop_bytes(task, rows, tuple(task.init)) for task in tasks)
    assert less < more


PARTS = {"shared": ("0.weight", "0.bias"), "personal": ("2.weight", "2.bias")}


def train_rounds_by_torch(module, rows, order, rounds):
    """Rounds of a lone client whose shared part gets a new optimiser in each, and its personal part keeps one."""
    module = copy.deepcopy(module)
    params = {part: [dict(module.named_parameters())[n] for n in names] for part, names in PARTS.items()}
    personal = torch.optim.Adam(params["personal"], lr=LR)
    for _ in range(rounds):
        optimisers = {"personal": personal, "shared": torch.optim.AdamW(params["shared"], lr=2 * LR)}
        for parts in order:
            for batch in cut(rows, epochs=1):
                module.zero_grad()
                functional.cross_entropy(module(batch["x"]), batch["y"]).backward()
                for part in parts:
                    optimisers[part].step()
    return {n: p.detach() for n, p in module.named_parameters()}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("build", "order"),
    [
        (mo.fedalt, [["personal"], ["shared"]]),
        (mo.fedsim, [["personal", "shared"]]),
        (lambda shared, personal: mo.finetune(personal=personal), [["personal"]]),
    ],
    ids=["fedalt", "fedsim", "finetune"],
)
def test_a_kept_state_goes_on_in_the_next_round(build, order, engine, tmp_path):
    module, rows = make_model(), make_rows(8, 0)
    fed = mo.data.from_clients({"one": rows}, test=0)
    shared = mo.adamw(2 * LR, batch_size=6, shuffle=False)
    personal = mo.adam(LR, batch_size=6, shuffle=False, keep_state=True)
    options = {"split": mo.split.by_name(module, personal=["2"]), "loss": "cross_entropy", "engine": engine}
    mo.fit(module, fed, build(shared=shared, personal=personal), rounds=2, out=tmp_path / "run", **options)
    run = mo.resume(tmp_path / "run", model=module, data=fed, rounds=3)
    for n, p in train_rounds_by_torch(module, rows, order, 3).items():
        torch.testing.assert_close(run.parameters("one")[n], p, **CLOSE)


def test_clients_of_unequal_size_keep_states_of_their_own():
    module, clients = make_model(), [make_rows(n, c) for c, n in enumerate(ROWS)]
    fed = mo.data.from_clients(dict(enumerate(clients)), test=0)
    how = mo.sgd(LR, batch_size=6, shuffle=False, momentum=0.9, keep_state=True)
    run = mo.fit(module, fed, mo.local_only(personal=how), loss="cross_entropy", rounds=3, engine="vectorised")
    for c, rows in enumerate(clients):
        expected = train_by_torch(module, cut(rows, epochs=3), "sgd", momentum=0.9)[-1]
        for n, p in run.parameters(c).items():
            torch.testing.assert_close(p, expected[n], **CLOSE)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mo.adam(0.1, betas=(0.9, 1.0)), r"`betas` must be two numbers >= 0 and < 1, got \(0.9, 1.0\)"),
        (lambda: mo.adam(0.1, betas=0.9), "`betas` must be two numbers"),
        (lambda: mo.adamw(0.1, eps=0), "`eps` must be > 0 and <= 1, got 0"),
        (lambda: mo.adamw(0.0), "`lr` must be > 0 and finite, got 0"),
        (lambda: mo.sgd(0.1, accumulate=0), "`accumulate` must be >= 1, got 0"),
        (lambda: mo.sgd(0.1, lr_decay="linaer"), "`lr_decay` must be one of the known names, got 'linaer'"),
        (lambda: mo.fedavg(shared=mo.adam(0.1, pull=0.1)), "`shared.pull` must be left out for this algorithm"),
        (lambda: mo.fedavg(shared="adam"), "`shared` must be a learning rate or what moiety.sgd, adam or adamw makes"),
        (lambda: mo.fedsim(shared=0.1, personal=mo.adam(0.1, accumulate=2)), "`personal.accumulate` must be left out"),
        (lambda: mo.fedsim(shared=0.1, personal=mo.sgd(0.1, lr_decay="linear")), "`personal.lr_decay` must be left"),
        (lambda: mo.sgd(0.1, keep_state=True), "`momentum` must be > 0 with keep_state, got 0"),
        (lambda: mo.fedavg(shared=mo.adam(0.1, keep_state=True)), "`shared.keep_state` must be left out"),
        (lambda: mo.ditto(shared=0.1, personal=mo.adam(0.1, keep_state=True)), "`personal.keep_state` must be left"),
        (
            lambda: mo.fedalt(shared=0.1, personal=mo.adam(0.1, keep_state=True), stateful=False),
            "`personal.keep_state` must be left out",
        ),
        (lambda: mo.sub_fedavg(shared=mo.adam(0.1, lr_decay="linear")), "`shared.lr_decay` must be left out"),
    ],
)
def test_bad_values_are_refused_in_one_line(build, message):
    with pytest.raises(MoietyError, match=f"^{message}") as error:
        build()
    assert "\n" not in str(error.value)


def test_a_file_holds_the_value():
    algorithm = mo.fedalt(shared=mo.adam(0.1), personal=mo.adamw(0.2, steps=3, betas=(0.8, 0.9), accumulate=2))
    personal = {"name": "adamw", "lr": 0.2, "steps": 3, "betas": [0.8, 0.9], "accumulate": 2}
    assert algorithm.spec == {"name": "fedalt", "shared": {"name": "adam", "lr": 0.1}, "personal": personal}
    assert algorithm_from(algorithm.spec).spec == algorithm.spec
    with pytest.raises(
        MoietyError, match=r"^`shared` must be a learning rate or what moiety.sgd makes, got AdamW\(.* plain SGD\.$"
    ):
        algorithm_from({"name": "scaffold", "shared": {"name": "adamw", "lr": 0.1}})
