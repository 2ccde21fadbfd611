"""From an ``nn.Module``, or from plain functions, to a ``Task``: pure functions of parameters and a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moiety import tree
from moiety.errors import must
from moiety.task import block, chain, scores
from moiety.task.chain import Slope, find_chain, list_layers
from moiety.task.cut import Call, TwoParts, divide, tensor_names
from moiety.task.forward import call_by_name, find_output, own_module
from moiety.task.losses import LabelLoss, find_loss
from moiety.task.metrics import as_set, find_metrics
from moiety.task.precision import in_full_precision
from moiety.task.scores import METRIC_OF_LOSS, METRICS, OF_LABELS_ALONE, UNVECTORISED, next_labels
from moiety.types import Batch, Metric, Params, Partial, PartialScores, SetMetric, Task

Loss = str | Callable[[Tensor, Batch], Tensor]
Metrics = Any
"""A metric or a list of them: a name, a ``Metric``, a ``SetMetric``, or a metric of torchmetrics."""


def from_module(
    model: nn.Module,
    *,
    loss: Loss,
    metric: Metrics | None = None,
    inputs: Sequence[str] = ("x",),
    penalty: Callable[[Params], Tensor] | None = None,
    weight: str | None = None,
) -> Task:
    """A task from a module that maps the columns ``inputs`` to an output.

    Args:
        model: it is copied, never changed.
        loss: by name, as ``moiety.loss`` makes it, or a function of (output, batch) that gives one loss per example.
        metric: by name, a ``Metric``, a ``SetMetric``, a metric of torchmetrics, or a list of these, of which the first
            decides gains; by default the one that goes with the loss.
        inputs: the columns given to ``forward``: by name where it has an argument of that name, else in order.
        penalty: a term of all parameters that is added to every example's training loss, never to a score.
        weight: the column that says how much each example counts: its loss is multiplied by it, and the metric weighs
            by it.

    >>> import torch
    >>> import moiety as mo
    >>> task = mo.task.from_module(mo.models.linear(3, 2, seed=0), loss="cross_entropy", metric="accuracy")
    >>> task.metric.name
    'accuracy'
    >>> batch = {"x": torch.ones(1, 3), "y": torch.tensor([1])}
    >>> loss_of_each_row, running_statistics = task.loss(task.init, batch)
    >>> loss_of_each_row.shape
    torch.Size([1])
    """
    must(isinstance(model, nn.Module), "model", "an nn.Module", type(model).__name__)
    copies = (block.for_blocks(copy.deepcopy(model)).train(mode) for mode in (True, False))
    training, evaluating = (Call(call_by_name(each, inputs)) for each in copies)
    init = {n: t.detach().clone() for n, t in tree.module_tensors(model).items()}
    buffers = frozenset(n for n, _ in model.named_buffers())
    per_example = find_loss(loss)
    metric, sets, set_decides = _pick_metrics(loss, per_example, metric, weight)
    unvectorised = next((why for f, why in UNVECTORISED.items() if f in (per_example, metric.per_example)), None)
    labels_alone = isinstance(per_example, LabelLoss) or per_example in OF_LABELS_ALONE
    spare = tuple(inputs) if labels_alone else ()  # a loss of the user's own may look at any column
    slope = None if penalty is not None or weight is not None else _find_slope(per_example)
    per_example = in_full_precision(per_example)
    if weight is not None:
        per_example = _weigh_loss(per_example, weight)

    def add_penalty(losses: Tensor, params: Params) -> Tensor:
        return losses if penalty is None else losses + penalty(params)

    def predict(params: Params, batch: Batch) -> Tensor:
        return find_output(evaluating(params, [batch[c] for c in inputs])[0])  # type: ignore[no-any-return]

    def train(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        output, new_buffers = training.on_copies(params, [batch[c] for c in inputs])
        return add_penalty(per_example(find_output(output), batch), params), new_buffers

    def score(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return per_example(output, batch), metric.per_example(output, batch)

    return Task(
        init=init,
        buffers=buffers,
        loss=find_chain(train, list_layers(training.module, tensor_names(training.module)), inputs, slope),
        predict=predict,
        scores=lambda params, batch: score(predict(params, batch), batch),
        metric=metric,
        sets=sets,
        set_decides=set_decides,
        score_outputs=score,
        mixes_examples=any(mixes(m) for m in model.modules()),
        unvectorised=unvectorised,
        partial=_plan_partial(training.module, inputs, per_example, add_penalty, spare, slope),
        partial_scores=_plan_partial_scores(evaluating.module, inputs, score),
    )


def _find_slope(per_example: Callable[[Tensor, Batch], Tensor]) -> Slope | None:
    """The loss with its gradient written out, where it is one of those."""
    plain = per_example.per_example if isinstance(per_example, LabelLoss) else per_example
    slopes = {scores.cross_entropy: chain.cross_entropy, scores.squared_error: chain.squared_error}
    return next((slope for loss, slope in slopes.items() if loss is plain), None)


class _Cuts(dict[frozenset[str], Any]):
    """The cuts that are known, by block. They point into the module, so a task that is sent elsewhere makes its own."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Cuts, ()


def _plan_partial(
    module: nn.Module,
    inputs: Sequence[str],
    per_example: Callable[[Tensor, Batch], Tensor],
    add_penalty: Callable[[Tensor, Params], Tensor],
    spare: tuple[str, ...],
    slope: Slope | None,
) -> Callable[[frozenset[str], Params, Batch], Partial | str | None]:
    """How the task is evaluated in part, worked out once for each block that is trained."""
    lookup = _Cuts()

    def make(parts: TwoParts) -> Partial:
        columns, features, rest = _take_columns(parts, inputs)

        def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
            output, buffers = rest(params, batch)
            return add_penalty(per_example(output, batch), params), buffers

        return Partial(features, find_chain(loss, parts.layers, columns, slope), spare)

    def partial(trained: frozenset[str], params: Params, batch: Batch) -> Partial | str | None:
        if trained not in lookup:
            parts = divide(module, trained, params, [batch[c] for c in inputs])
            lookup[trained] = make(parts) if isinstance(parts, TwoParts) else parts
        cut: Partial | str | None = lookup[trained]
        return cut

    return partial


def _plan_partial_scores(
    module: nn.Module, inputs: Sequence[str], score: Callable[[Tensor, Batch], tuple[Tensor, Tensor]]
) -> Callable[[frozenset[str], Params, Batch], PartialScores | None]:
    """The same for scores, where only a cut that takes milliseconds to find pays."""
    lookup, buffers = _Cuts(), {name for name, _ in own_module(module).named_buffers()}

    def make(parts: TwoParts) -> PartialScores:
        _, features, rest = _take_columns(parts, inputs)
        return PartialScores(features, lambda params, batch: score(rest(params, batch)[0], batch))

    def partial_scores(own: frozenset[str], params: Params, batch: Batch) -> PartialScores | None:
        if own not in lookup:
            # A cut looks for parameters alone.
            parts = None if own & buffers else divide(module, own, params, [batch[c] for c in inputs], quick=True)
            lookup[own] = make(parts) if isinstance(parts, TwoParts) else None
        cut: PartialScores | None = lookup[own]
        return cut

    return partial_scores


def _take_columns(
    parts: TwoParts, inputs: Sequence[str]
) -> tuple[list[str], Callable[[Params, Batch], Batch], Callable[[Params, Batch], tuple[Tensor, Params]]]:
    """The two parts of a model as functions of batches: features are columns too, whose names come first."""
    names = [f"\0feature {i}" for i in range(parts.count)]  # no column of a user's is called that
    return (
        names,
        lambda params, batch: dict(zip(names, parts.features(params, [batch[c] for c in inputs]), strict=True)),
        lambda params, batch: parts.rest(params, [batch[name] for name in names]),
    )


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


def _pick_metrics(
    loss: Loss, per_example: Callable[[Tensor, Batch], Tensor], metric: Metrics | None, weight: str | None
) -> tuple[Metric, tuple[SetMetric, ...], bool]:
    """The metric of single examples, those of sets, and whether the first of these decides gains.

    Means over examples weigh them by the column ``weight``, if there is one.
    """
    if isinstance(per_example, LabelLoss):
        default = per_example.metric
    else:
        default = METRICS[METRIC_OF_LOSS[loss]] if isinstance(loss, str) else Metric("loss", False, per_example)
    metrics = [default] if metric is None else find_metrics(metric)
    if loss == "next_token":
        default, *metrics = (_score_next_tokens(each) for each in (default, *metrics))
    if weight is not None:
        default = _weigh_metric(default, weight)
        metrics = [_weigh_metric(each, weight) if isinstance(each, Metric) else each for each in metrics]
    first, *others = metrics
    sets = tuple(map(as_set, others))
    return (first, sets, False) if isinstance(first, Metric) else (default, (first, *sets), True)


def _score_next_tokens(metric: Any) -> Any:
    """The metric of a causal language model's output at each position against the token that comes next."""
    if isinstance(metric, SetMetric):
        return metric._replace(compute=lambda output, batch: metric.compute(output, next_labels(batch)))
    own = metric.weight
    return metric._replace(
        per_example=lambda output, batch: metric.per_example(output, next_labels(batch)),
        weight=None if own is None else lambda batch: own(next_labels(batch)),
    )


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
    nbytes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            nbytes[storage.data_ptr()] = max(nbytes.get(storage.data_ptr(), 0), tensor.numel() * tensor.element_size())
        return tensor.detach()  # an output that its own node keeps would never be freed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        losses, _ = task.loss(params, batch)
        total = losses.sum()
    del total
    return sum(nbytes.values())
