"""A task is the module: against ``torch.func.functional_call`` and the module's own forward pass."""

import copy
import gc
import weakref

import pytest
import torch
from oracle_problems import federated, problem_of, split_of
from torch import nn
from torch.func import functional_call

import moiety as mo
from moiety.errors import MoietyError
from moiety.loop.costs import memory_on_device
from moiety.task import backprop_bytes, from_functions, from_module
from moiety.transport import device_memory
from moiety.types import Metric


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """A language model whose decoder is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.mix = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 5, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.mix(self.embed(x))))


class Counting(nn.Module):
    """A buffer that the forward pass replaces rather than edits."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + len(x)
        return self.line(x)


def batchnorm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def conv():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


CASES = {
    "linear": (lambda: nn.Linear(3, 2), lambda: torch.randn(6, 3), (6,)),
    "conv": (conv, lambda: torch.randn(6, 1, 4, 4), (6,)),
    "lstm": (Recurrent, lambda: torch.randn(6, 5, 3), (6,)),
    "tied": (Tied, lambda: torch.randint(0, 5, (6, 7)), (6, 7)),
    "batchnorm": (batchnorm, lambda: torch.randn(6, 3), (6,)),
    "counting": (Counting, lambda: torch.randn(6, 3), (6,)),
}


@pytest.mark.parametrize(("make", "inputs", "shape"), CASES.values(), ids=CASES)
def test_from_module_is_functional_call(make, inputs, shape):
    """Values other than the module's own, in both modes; losses per example from torch's cross-entropy."""
    torch.manual_seed(0)
    module = make()
    before = copy.deepcopy(module.state_dict())
    mode = module.training
    task = from_module(module, loss="cross_entropy")
    assert set(task.init) == {n for n, _ in [*module.named_parameters(), *module.named_buffers()]}
    assert task.buffers == {n for n, _ in module.named_buffers()}
    params = {n: p + torch.randn_like(p) if p.is_floating_point() else p + 3 for n, p in task.init.items()}
    params = {n: p.abs() if n.endswith("running_var") else p for n, p in params.items()}
    originals = copy.deepcopy(params)
    x, y = inputs(), torch.randint(0, 2, shape)
    batch = {"x": x, "y": y}

    expected = functional_call(copy.deepcopy(module).eval(), params, (x,))
    torch.testing.assert_close(task.predict(params, batch), expected, rtol=0, atol=0)

    per_example = nn.functional.cross_entropy(expected.movedim(-1, 1), y, reduction="none").reshape(6, -1).mean(1)
    loss, hits = task.scores(params, batch)
    torch.testing.assert_close(loss, per_example)
    torch.testing.assert_close(hits, (expected.argmax(-1) == y).float().reshape(6, -1).mean(1))

    # While training: buffers that functional_call leaves in the dict it was given.
    twin = copy.deepcopy(module).train()
    twin.load_state_dict(params, strict=False)
    output = twin(x)
    loss, buffers = task.loss(params, batch)
    per_example = nn.functional.cross_entropy(output.movedim(-1, 1), y, reduction="none").reshape(6, -1).mean(1)
    torch.testing.assert_close(loss, per_example)
    assert buffers.keys() == task.buffers
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(buffers[name], buffer, rtol=0, atol=0)

    for name, value in originals.items():
        assert torch.equal(params[name], value), f"{name} was given, not lent"
    assert module.training is mode
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"the user's module changed at {name}"


@pytest.mark.parametrize(("make", "inputs", "shape"), CASES.values(), ids=CASES)
def test_gradients_are_those_of_functional_call(make, inputs, shape):
    """A tied weight has one name and the sum of the gradients of its places."""
    torch.manual_seed(0)
    module = make()
    task = from_module(module, loss="cross_entropy")
    x, y = inputs(), torch.randint(0, 2, shape)
    twin = copy.deepcopy(module).train()
    output = twin(x)
    nn.functional.cross_entropy(output.movedim(-1, 1), y, reduction="none").reshape(6, -1).mean(1).mean().backward()
    leaves = {n: p.clone().requires_grad_(n not in task.buffers) for n, p in task.init.items()}
    task.loss(leaves, {"x": x, "y": y})[0].mean().backward()
    for name, p in twin.named_parameters():
        torch.testing.assert_close(leaves[name].grad, p.grad, rtol=1e-5, atol=1e-7)


def test_a_task_called_twice_is_called_afresh():
    """The LSTM keeps a list of its weights; a second call with other values must use those."""
    torch.manual_seed(0)
    module = Recurrent()
    task = from_module(module, loss="cross_entropy")
    x = torch.randn(2, 5, 3)
    for k in (1.0, 2.0, 1.0):
        params = {n: p * k for n, p in task.init.items()}
        expected = functional_call(copy.deepcopy(module).eval(), params, (x,))
        torch.testing.assert_close(task.predict(params, {"x": x}), expected, rtol=0, atol=0)


def test_a_failing_forward_pass_leaves_the_task_usable():
    task = from_module(nn.Linear(3, 2), loss="cross_entropy")
    other = {n: p + 1 for n, p in task.init.items()}
    with pytest.raises(RuntimeError):
        task.predict(other, {"x": torch.ones(2, 4)})
    x = torch.ones(2, 3)
    expected = nn.functional.linear(x, task.init["weight"], task.init["bias"])
    torch.testing.assert_close(task.predict(task.init, {"x": x}), expected)


def test_two_inputs_in_their_order():
    bilinear = nn.Bilinear(2, 3, 1)
    task = from_module(bilinear, loss="mse", inputs=("b", "a"))
    batch = {"a": torch.randn(4, 3), "b": torch.randn(4, 2), "y": torch.zeros(4, 1)}
    torch.testing.assert_close(task.predict(task.init, batch), bilinear(batch["b"], batch["a"]).detach())


def test_squared_error_is_the_mean_over_outputs():
    """Outputs (1, 2) and (3, 5) for targets (0, 0) and (1, 1).

    (1 + 4)/2 and (4 + 16)/2. A flat y of one output fits too.
    """
    identity = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(2))
    task = from_module(identity, loss="mse")
    batch = {"x": torch.tensor([[1.0, 2.0], [3.0, 5.0]]), "y": torch.tensor([[0.0, 0.0], [1.0, 1.0]])}
    loss, metric = task.scores(task.init, batch)
    assert loss.tolist() == metric.tolist() == [2.5, 10.0]
    line = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        line.weight.copy_(torch.ones(1, 2))
    task = from_module(line, loss="mse")
    assert task.loss(task.init, {**batch, "y": torch.tensor([0.0, 2.0])})[0].tolist() == [9.0, 36.0]


def test_a_loss_and_a_metric_of_ones_own():
    def absolute(output, batch):
        return (output[:, 0] - batch["y"]).abs()

    metric = Metric("within_one", True, lambda output, batch: (absolute(output, batch) <= 1).float())
    line = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        line.weight.fill_(2.0)
    batch = {"x": torch.tensor([[1.0], [3.0]]), "y": torch.tensor([2.5, 3.0])}
    task = from_module(line, loss=absolute, metric=metric)
    assert [t.tolist() for t in task.scores(task.init, batch)] == [[0.5, 3.0], [1.0, 0.0]]
    assert task.metric.name == "within_one"
    task = from_module(line, loss=absolute)
    assert (task.metric.name, task.metric.higher_is_better) == ("loss", False)
    assert [t.tolist() for t in task.scores(task.init, batch)] == [[0.5, 3.0], [0.5, 3.0]]


def test_names_are_checked():
    with pytest.raises(MoietyError, match=r"^`loss` must be one of the known names, got 'cross_entropi'. Did you mean"):
        from_module(nn.Linear(1, 1), loss="cross_entropi")
    with pytest.raises(MoietyError, match=r"^`metric` must be one of the known names, got 'acc'"):
        from_module(nn.Linear(1, 1), loss="mse", metric="acc")
    with pytest.raises(MoietyError, match=r"^`model` must be an nn.Module, got type"):
        from_module(nn.Linear, loss="mse")


def test_who_mixes_examples():
    assert from_module(batchnorm(), loss="mse").mixes_examples
    assert not from_module(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4)), loss="mse").mixes_examples


def test_from_functions():
    start = torch.tensor([1.0, 2.0])
    task = from_functions(
        {"w": start},
        loss=lambda p, b: (b["x"] @ p["w"] - b["y"]) ** 2,
        predict=lambda p, b: b["x"] @ p["w"],
        metric=Metric("error", False, lambda output, b: (output - b["y"]).abs()),
    )
    batch = {"x": torch.tensor([[1.0, 1.0], [0.0, 2.0]]), "y": torch.tensor([1.0, 1.0])}
    loss, buffers = task.loss(task.init, batch)
    assert loss.tolist() == [4.0, 9.0]
    assert buffers == {}
    assert [t.tolist() for t in task.scores(task.init, batch)] == [[4.0, 9.0], [2.0, 3.0]]
    start += 1
    assert task.init["w"].tolist() == [1.0, 2.0], "the first values are a copy"
    task = from_functions({"w": [1.0, 2.0]}, loss=lambda p, b: b["x"] @ p["w"])
    assert [t.tolist() for t in task.scores(task.init, batch)] == [[3.0, 4.0], [3.0, 4.0]]
    with pytest.raises(MoietyError, match=r"^`init` must be a dict with at least one parameter"):
        from_functions({}, loss=lambda p, b: b["x"])


def test_a_task_of_functions_may_have_whole_numbered_targets():
    """Counts are no labels: a Poisson loss, log(rate) = w, on counts 0, 3, 4 has gradient exp(w) - mean(y).

    From w = 0 with rate 1/10: mean(y) = 7/3, so w = (7/3 - 1) / 10 = 2/15.
    """
    task = from_functions({"w": torch.zeros((), dtype=torch.float64)}, lambda p, b: p["w"].exp() - b["y"] * p["w"])
    data = federated([{"y": torch.tensor([0, 3, 4]).numpy()}])
    run = mo.fit(task, data, mo.fedavg(shared=0.1), split=split_of(["w"]), rounds=1, engine="sequential")
    assert float(run.shared_parameters()["w"]) == pytest.approx(2 / 15, rel=1e-12)


def test_a_task_of_functions_needs_no_column_y():
    """Columns are free: F = mean (w - x)^2 / 2 from 0 on x = 1, 3 with rate 1/2 gives w = 1."""
    task = from_functions({"w": torch.zeros((), dtype=torch.float64)}, lambda p, b: (p["w"] - b["x"]).square() / 2)
    data = federated([{"x": torch.tensor([1.0, 3.0]).numpy()}])
    run = mo.fit(task, data, mo.fedavg(shared=0.5), split=split_of(["w"]), rounds=1, engine="sequential")
    assert float(run.shared_parameters()["w"]) == pytest.approx(1.0, rel=1e-12)


def test_backprop_bytes_of_a_linear_model():
    """A 3 -> 2 linear layer with squared error on one row, in float32.

    Autograd keeps the layer's input (3 numbers, for the weight's gradient) and the residual (2 numbers, for the
    square's); the weight itself is a parameter and does not count. 5 * 4 = 20 bytes. In float64 40, with four rows
    80.
    """
    for dtype, rows, size in ((torch.float32, 1, 20), (torch.float64, 1, 40), (torch.float32, 4, 80)):
        task = from_module(nn.Linear(3, 2).to(dtype), loss="mse")
        batch = {"x": torch.randn(rows, 3, dtype=dtype), "y": torch.randn(rows, 2, dtype=dtype)}
        assert backprop_bytes(task, batch, task.init) == size


def test_backprop_bytes_of_an_mlp():
    """4 -> 6 -> 3 with ReLU and squared error, one row, float32.

    Input 4, ReLU output 6 (kept once, for the ReLU and for the head's weight), residual 3: 13 numbers, 52 bytes.
    """
    task = from_module(mo.models.mlp(4, 3, hidden=(6,)), loss="mse")
    assert backprop_bytes(task, {"x": torch.randn(1, 4), "y": torch.randn(1, 3)}, task.init) == 52


def test_nothing_is_left_of_what_was_measured():
    """The output of exp is kept by its own node; autograd frees such a tensor only where no hook gives it back."""
    outputs = []

    class Watched(nn.Linear):
        def forward(self, x):
            output = super().forward(x).exp()
            outputs.append(weakref.ref(output))
            return output

    task = from_module(Watched(3, 2), loss="mse")
    outputs.clear()
    # exp keeps its output and the square its residual, 2 numbers each; the layer keeps its 3 inputs.
    assert backprop_bytes(task, {"x": torch.randn(1, 3), "y": torch.randn(1, 2)}, task.init) == 28
    gc.collect()
    assert outputs
    assert [output() for output in outputs] == [None]


@pytest.mark.parametrize(
    ("personal", "size"),
    [(["head"], 3 * 30 * 4 + 2 * 21 * 4 + 52), ([], 3 * 51 * 4 + 52), (["hidden1", "head"], 2 * 51 * 4 + 52)],
    ids=["head", "nothing", "everything"],
)
def test_device_memory_is_the_formula_of_appendix_b4(personal, size):
    """3 size(u) + 2 size(v) + size(backprop at batch size 1) for the 4 -> 6 -> 3 network.

    30 numbers in ``hidden1``, 21 in ``head``.
    """
    net = mo.models.mlp(4, 3, hidden=(6,))
    data = federated([{"x": torch.randn(5, 4).numpy(), "y": torch.randn(5, 3).numpy()}])
    problem = problem_of(from_module(net, loss="mse"), data, mo.split.by_name(net, personal=personal))
    algorithm = mo.fedsim(shared=0.1, personal=0.1)
    assert memory_on_device(problem, algorithm, problem.first_personal()) == size
    run = mo.fit(
        net,
        data,
        algorithm,
        split=mo.split.by_name(net, personal=personal),
        rounds=1,
        engine="sequential",
    )
    assert run.ledger["device_memory"] == size


def test_device_memory_adds_up():
    shared, personal = {"u": torch.zeros(10, dtype=torch.float64)}, {"v": torch.zeros(3)}
    assert device_memory(shared, personal, 7) == 3 * 80 + 2 * 12 + 7


def test_a_frozen_whole_numbered_parameter_is_no_obstacle():
    """A look-up table kept as a parameter without gradient."""

    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.order = nn.Parameter(torch.tensor([1, 0]), requires_grad=False)
            self.head = nn.Linear(2, 1)

        def forward(self, x):
            return self.head(x[:, self.order])

    data = federated([{"x": torch.randn(3, 2).numpy(), "y": torch.randn(3, 1).numpy()}])
    run = mo.fit(Picks(), data, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    assert run.shared_parameters()["order"].tolist() == [1, 0]
