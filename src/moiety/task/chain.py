"""Plain SGD on a chain of linear layers, without autograd and without ``torch.func.vmap``.

In small models more time goes into the calls of autograd and vmap than into arithmetic. For linear layers one after the
other, with simple functions between them, the backward pass is a few lines. They are written out here, for one client
and for a block of them alike. The step of a weight is one product with the weight as its target.

This is done only where nothing else can see the difference. All else takes the ordinary way, with the same numbers up
to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.task import block
from moiety.task.steps import Rate
from moiety.types import Batch, LossFunction, Params


class Linear(NamedTuple):
    """A linear layer by the names of its parameters."""

    weight: str
    bias: str | None


Layer = Linear | str
"""A linear layer, or the name of a function between two."""
Slope = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From outputs and labels to the loss of every row, and its gradient in the outputs. Rows are along the last axis."""
FLATTEN = "flatten"
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu, lambda g, y: torch.ops.aten.threshold_backward(g, y, 0)),
    "tanh": (torch.tanh, torch.ops.aten.tanh_backward),
    "sigmoid": (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}
"""Functions of single numbers, each with its way back: from the gradient of its output, and that output."""
KNOWN: dict[Any, str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", functional.relu: "relu"} | {
    key: name for name in (*FUNCTIONS, FLATTEN) for key in (name, getattr(torch, name))
}
"""What the modules of a class, a function or a tensor's method do."""


def cross_entropy(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The ``Slope`` of cross-entropy; a label that is no class raises."""
    logs, y = torch.log_softmax(output, -2), y.unsqueeze(-2)
    losses = logs.gather(-2, y).squeeze(-2).neg_()
    return losses, logs.exp_().scatter_add_(-2, y, logs.new_full((), -1.0).expand(y.shape))


def squared_error(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The ``Slope`` of the squared error, which is a mean over outputs."""
    error = output - y.reshape(output.mT.shape).mT
    return error.square().mean(-2), error.mul_(2 / output.shape[-2])


def multiply(a: Tensor, b: Tensor, start: Tensor | None = None, **options: Any) -> Tensor:
    """``start + a b`` of matrices, or of stacks of them."""
    if start is None:
        return torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)
    # Written to `out`, not by the method in place, whose operations PyTorch does not count.
    return (torch.addmm if a.dim() == 2 else torch.baddbmm)(start, a, b, **options)


def align(tensor: Tensor) -> Tensor:
    """The tensor in memory that starts at a multiple of 64 bytes: the last bits of products depend on the start."""
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


class Chain:
    """A task's loss, where it is that of layers one after the other.

    Where it trains, all tensors have an axis over clients in front, or none has.

    Args:
        loss: the same as an ordinary function.
        layers: from the column to the output.
        column: the input.
        slope: the last function.
    """

    def __init__(self, loss: LossFunction, layers: Sequence[Layer], column: str, slope: Slope) -> None:
        first = next(k for k, layer in enumerate(layers) if isinstance(layer, Linear))
        self.loss, self.column, self.slope = loss, column, slope
        # After a linear layer of rows there is nothing left to flatten.
        self.layers, self.flat = [layer for layer in layers if layer != FLATTEN], FLATTEN in layers[:first]
        self.names = names_in(layers)

    def __call__(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        """One loss per example, and the buffers that the forward pass changed."""
        return self.loss(params, batch)

    def forward(self, params: Params, batch: Batch) -> tuple[list[Tensor], Tensor, Tensor] | None:
        """The input and the outputs of all layers, and the slope; None for a batch that it is not made for."""
        x, y, axes = batch[self.column], batch["y"], params[self.names[0]].dim()
        x = x.flatten(axes - 1) if self.flat and x.dim() > axes else x
        labels = x.dtype if self.slope is squared_error else torch.int64
        if x.dim() != axes or y.dtype != labels or any(p.dtype != x.dtype or not p.is_cpu for p in params.values()):
            return None
        outputs = [x.mT]
        try:
            for layer in self.layers:
                if isinstance(layer, Linear):
                    bias = None if layer.bias is None else params[layer.bias].unsqueeze(-1)
                    outputs.append(multiply(params[layer.weight], outputs[-1], bias))
                else:
                    outputs.append(FUNCTIONS[layer][0](outputs[-1]))
            return outputs, *self.slope(outputs[-1], y)
        except (IndexError, RuntimeError):  # the ordinary way says what is wrong; a label of -100 is right there
            return None

    def backward(
        self, params: Params, rates: Mapping[str, Rate], outputs: Sequence[Tensor], g: Tensor, *, in_place: bool
    ) -> Params:
        """The parameters with ``rates`` after a step; ``in_place`` says whether their memory may be written to."""
        new = {}
        trainable = [isinstance(layer, Linear) and bool(rates.keys() & set(layer)) for layer in self.layers]
        for k in range(len(self.layers) - 1, trainable.index(True) - 1, -1):
            layer, x = self.layers[k], outputs[k].mT
            if not isinstance(layer, Linear):
                g = FUNCTIONS[layer][1](g, outputs[k + 1])
                continue
            below = multiply(params[layer.weight].mT, g) if True in trainable[:k] else g
            for name in (name for name in layer if name is not None and name in rates):
                p, (lr, decay) = params[name], rates[name]
                target = p if in_place else None
                if name == layer.weight:
                    new[name] = multiply(g, x, p, beta=1 - lr * decay, alpha=-lr, out=target)
                else:
                    new[name] = torch.sub(p * (1 - lr * decay) if decay else p, g.sum(-1), alpha=lr, out=target)
            g = below
        return new

    def step(
        self, params: Params, batch: Batch, rates: Mapping[str, Rate], *, in_place: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """Replace ``params`` by those after a step; the mean loss before it, and whether any row is real.

        None, and no step, for a batch that it is not made for. A batch of padding changes nothing.
        """
        result = self.forward(params, batch)
        if result is None:
            return None
        outputs, losses, g = result
        mask, active, moves = batch.get("mask"), None, True
        if mask is not None:
            active = mask.any(-1)
            moves = bool(active.all())
        if mask is None or bool(mask.all()):
            loss, g = losses.mean(-1), g.div_(losses.shape[-1])
        else:
            count = mask.sum(-1, keepdim=True).clamp(min=1)
            loss = (torch.where(mask, losses, 0) / count).sum(-1)
            g = torch.where(mask.unsqueeze(-2), g, 0).div_(count.unsqueeze(-1))
        new = self.backward(params, rates, outputs, g, in_place=in_place and moves)
        if active is not None and not moves:
            new = {n: torch.where(active.view(-1, *[1] * (p.dim() - 1)), p, params[n]) for n, p in new.items()}
        params.update(new)
        return loss, active


def train_chain(
    loss_of: LossFunction, model: Params, rates: Mapping[str, Rate], batches: Iterable[Batch]
) -> tuple[Params, list[Tensor], list[Tensor], Iterable[Batch]]:
    """Steps on the parameters with ``rates``, for as many batches as a chain can be trained on.

    Returns:
        The new model, the mean loss before each step, whether a step's batch had any real row, where some are padding,
        and the batches that are left.
    """
    losses, actives, opening = list[Tensor](), list[Tensor](), block.open_block()
    has_hooks = nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    if not isinstance(loss_of, Chain) or not rates.keys() <= set(loss_of.names) or opening is None:
        return model, losses, actives, batches
    if has_hooks or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return model, losses, actives, batches
    batches = iter(batches)
    params = {name: align(opening.take(model[name])) for name in loss_of.names}
    for batch in batches:
        columns = {name: align(opening.take(batch[name])) for name in (loss_of.column, "y", "mask") if name in batch}
        with block.leave_block():
            result = loss_of.step(params, columns, rates, in_place=bool(losses))
        if result is None:
            batches = chain([batch], batches)
            break
        losses.append(opening.give(result[0]))
        actives += [opening.give(result[1])] if result[1] is not None else []
    new = {name: opening.give(params[name]) for name in rates} if losses else {}
    return {**model, **new}, losses, actives, batches


def names_in(layers: Sequence[Layer]) -> list[str]:
    """The parameters of layers."""
    return [name for layer in layers if isinstance(layer, Linear) for name in layer if name is not None]


def find_chain(
    loss: LossFunction, layers: Sequence[Layer] | None, columns: Sequence[str], slope: Slope | None
) -> LossFunction:
    """The loss as a chain, where it is one and uses no parameter twice; else as it is."""
    if layers is None or slope is None or len(columns) != 1:
        return loss
    names = names_in(layers)
    return Chain(loss, layers, columns[0], slope) if names and len(names) == len(set(names)) else loss


def list_layers(module: nn.Module, names: Mapping[int, str]) -> list[Layer] | None:
    """The layers of a module that is nothing but modules of torch one after the other; None of any other.

    ``names`` are those of its parameters, by tensor identity.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    own = vars(module).get("forward")
    if any(hooks) or module._buffers or (own is not None and getattr(own, "func", None) is not block.linear):
        return None
    if type(module) is nn.Linear:
        return [Linear(names[id(module.weight)], None if module.bias is None else names[id(module.bias)])]
    if type(module) is nn.Sequential:
        each = [list_layers(part, names) for part in module]
        return None if None in each else [layer for some in each for layer in some or ()]
    if type(module) is nn.Flatten:
        return [FLATTEN] if (module.start_dim, module.end_dim) == (1, -1) else None
    return [KNOWN[type(module)]] if type(module) in KNOWN else None


def list_graph_layers(owner: nn.Module, graph: fx.Graph, names: Mapping[int, str]) -> list[Layer] | None:
    """The same of a graph whose modules ``owner`` holds."""
    start, *nodes, end = graph.nodes
    layers: list[Layer] = []
    for before, node in zip([start, *nodes], nodes, strict=False):
        part = list_layers(owner.get_submodule(str(node.target)), names) if node.op == "call_module" else None
        function = KNOWN.get(node.target) if node.op in ("call_function", "call_method") else None
        if (
            function is not None
            and node.args[1:] == ((1,) if function == FLATTEN else ())
            and not node.kwargs.keys() - {"inplace"}
        ):
            part = [function]
        if part is None or node.all_input_nodes != [before]:
            return None
        layers += part
    return layers if end.args == ((nodes or [start])[-1],) and start.op == "placeholder" else None
