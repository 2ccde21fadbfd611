"""From an ``nn.Module``, or from plain functions, to a ``Task``: pure functions of parameters and a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from moiety import tree
from moiety.errors import choice, must
from moiety.task import block
from moiety.task.cut import Call, Divided, divide
from moiety.task.scores import LOSSES, METRIC_OF_LOSS, METRICS, OF_LABELS_ALONE, UNVECTORISED
from moiety.types import Batch, Metric, Params, Partial, Task

Loss = str | Callable[[Tensor, Batch], Tensor]


def from_module(
    model: nn.Module,
    *,
    loss: Loss,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    penalty: Callable[[Params], Tensor] | None = None,
    weight: str | None = None,
) -> Task:
    """A task from a module that maps the columns ``inputs`` to an output.

    Args:
        model: it is copied, never changed.
        loss: one of ``scores.LOSSES`` by name, or a function of (output, batch) that gives one loss per example.
        metric: one of ``scores.METRICS`` by name, or a ``Metric``; by default the one that goes with the loss.
        inputs: the columns given to ``forward``, in order.
        penalty: a term of all parameters that is added to every example's training loss, never to a score.
        weight: the column that says how much each example counts: its loss is multiplied by it, and the metric weighs
            by it.
    """
    must(isinstance(model, nn.Module), "model", "an nn.Module", type(model).__name__)
    training, evaluating = (Call(block.for_blocks(copy.deepcopy(model)).train(mode)) for mode in (True, False))
    init = {n: t.detach().clone() for n, t in tree.module_tensors(model).items()}
    buffers = frozenset(n for n, _ in model.named_buffers())
    per_example, metric = _loss(loss), _metric(loss, metric)
    unvectorised = next((why for f, why in UNVECTORISED.items() if f in (per_example, metric.per_example)), None)
    spare = tuple(inputs) if per_example in OF_LABELS_ALONE else ()  # a loss of the user's own may look at any column
    if weight is not None:
        per_example, metric = _weigh_loss(per_example, weight), _weigh_metric(metric, weight)

    def add_penalty(losses: Tensor, params: Params) -> Tensor:
        return losses if penalty is None else losses + penalty(params)

    def predict(params: Params, batch: Batch) -> Tensor:
        return evaluating(params, [batch[c] for c in inputs])[0]  # type: ignore[no-any-return]

    def train(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        output, changed = training.on_copies(params, [batch[c] for c in inputs])
        return add_penalty(per_example(output, batch), params), changed

    def scores(params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        output = predict(params, batch)
        return per_example(output, batch), metric.per_example(output, batch)

    return Task(
        init=init,
        buffers=buffers,
        loss=train,
        predict=predict,
        scores=scores,
        metric=metric,
        mixes_examples=any(mixes(m) for m in model.modules()),
        unvectorised=unvectorised,
        partial=_partial(training.module, inputs, per_example, add_penalty, spare),
    )


class _Cuts(dict[frozenset[str], Partial | str | None]):
    """The cuts that are known, by block. They point into the module, so a task that is sent elsewhere makes its own."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Cuts, ()


def _partial(
    module: nn.Module,
    inputs: Sequence[str],
    per_example: Callable[[Tensor, Batch], Tensor],
    add_penalty: Callable[[Tensor, Params], Tensor],
    spare: tuple[str, ...],
) -> Callable[[frozenset[str], Params, Batch], Partial | str | None]:
    """How the task is evaluated in part, worked out once for each block that is trained."""
    known = _Cuts()

    def make(divided: Divided) -> Partial:
        names = [f"\0feature {i}" for i in range(divided.count)]  # no column of a user's is called that

        def features(params: Params, batch: Batch) -> Batch:
            return dict(zip(names, divided.features(params, [batch[c] for c in inputs]), strict=True))

        def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
            output, changed = divided.rest(params, [batch[name] for name in names])
            return add_penalty(per_example(output, batch), params), changed

        return Partial(features, loss, spare)

    def partial(trained: frozenset[str], params: Params, batch: Batch) -> Partial | str | None:
        if trained not in known:
            divided = divide(module, trained, params, [batch[c] for c in inputs])
            known[trained] = make(divided) if isinstance(divided, Divided) else divided
        return known[trained]

    return partial


def from_functions(
    init: Params,
    loss: Callable[[Params, Batch], Tensor],
    predict: Callable[[Params, Batch], Tensor] | None = None,
    metric: Metric | None = None,
) -> Task:
    """A task from plain functions of (parameters, batch); ``loss`` gives one number per example.

    Without a ``predict`` the loss stands for the prediction; without a ``metric`` the loss is the metric.
    """
    must(bool(init), "init", "a dict with at least one parameter", init)
    predict = predict or loss
    output_of = loss if metric is None else predict
    metric = metric or Metric("loss", False, lambda output, batch: output)
    return Task(
        init={n: torch.as_tensor(p).detach().clone() for n, p in init.items()},
        buffers=frozenset(),
        loss=lambda params, batch: (loss(params, batch), {}),
        predict=predict,
        scores=lambda params, batch: (loss(params, batch), metric.per_example(output_of(params, batch), batch)),
        metric=metric,
    )


def _loss(loss: Loss) -> Callable[[Tensor, Batch], Tensor]:
    if callable(loss):
        return loss
    choice("loss", loss, LOSSES)
    return LOSSES[loss]


def _metric(loss: Loss, metric: str | Metric | None) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if metric is not None:
        choice("metric", metric, METRICS)
        return METRICS[metric]
    if isinstance(loss, str):
        return METRICS[METRIC_OF_LOSS[loss]]
    return Metric("loss", False, loss)


def _weigh_loss(per_example: Callable[[Tensor, Batch], Tensor], column: str) -> Callable[[Tensor, Batch], Tensor]:
    """The loss of each example times its weight."""
    return lambda output, batch: per_example(output, batch) * batch[column]


def _weigh_metric(metric: Metric, column: str) -> Metric:
    """The metric with examples weighed by a column, besides what it weighs them by already."""
    own = metric.weight
    return metric._replace(weight=lambda batch: batch[column] * (1 if own is None else own(batch)))


def mixes(module: nn.Module) -> bool:
    """Whether a layer's outputs, or its running statistics, depend on all examples of a batch while training."""
    norms = nn.modules.batchnorm
    return isinstance(module, norms._BatchNorm) or (isinstance(module, norms._NormBase) and module.track_running_stats)


def dtype_of(task: Task) -> torch.dtype:
    """The floating type the model computes in: that of its first floating parameter."""
    kinds = [p.dtype for p in task.init.values() if p.is_floating_point()]
    return kinds[0] if kinds else torch.float32


def backprop_bytes(task: Task, batch: Batch, trained: Collection[str]) -> int:
    """Bytes that autograd keeps between the forward and the backward pass of one batch, parameters aside."""
    params = {n: p.detach().requires_grad_(n in trained) for n, p in task.init.items()}
    own = {p.untyped_storage().data_ptr() for p in params.values()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = max(kept.get(storage.data_ptr(), 0), tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        losses, _ = task.loss(params, batch)
        total = losses.sum()
    del total
    return sum(kept.values())
