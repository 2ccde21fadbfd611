"""Partial evaluation: what no trained parameter reaches is computed once per row, not once per step.

While a block of parameters is trained and the rest is held fixed (a personal head, an adapter), the part of the model
that the block does not reach gives the same features for a row each time the row comes round. A graph of the model
shows that part: nodes that no trained parameter reaches are the prefix, the rest is the suffix. The numbers are those
of the whole model, since both run the very same operations.

``torch.fx`` makes the graph in milliseconds from modules and plain functions. Code that looks at shapes or types, as
models of other libraries do, needs ``torch.export``, which takes a few seconds the first time.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.random import fork_rng

from moiety import tree
from moiety.task.block import leave_block
from moiety.task.chain import Layer, list_graph_layers
from moiety.task.forward import InputsByName, find_output, own_module
from moiety.task.held import after_backward
from moiety.types import Params


class Call:
    """Calls a module with given tensors in the place of its parameters and buffers.

    Does what ``torch.func.functional_call`` does, with the places looked up once: in small models that look-up
    is a sixth of the time of a training step. Names that the module does not have are passed over.
    """

    def __init__(self, module: nn.Module, names: Mapping[int, str] | None = None) -> None:
        """``names`` by tensor identity, where ``module`` is a part of a larger one whose names count."""
        self.module = module
        self.places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        names = names or tensor_names(module)
        for part in module.modules():
            # A tied tensor has one name and several places; one without a name is a constant that tracing made.
            for members in (part._parameters, part._buffers):
                for key, tensor in members.items():
                    if tensor is not None and id(tensor) in names:
                        self.places.setdefault(names[id(tensor)], []).append((members, key))
        self.buffers = {names[id(b)]: self.places[names[id(b)]][0] for b in module.buffers() if id(b) in names}

    def __call__(self, params: Params, inputs: Sequence[Any]) -> tuple[Any, Params]:
        """The module's output, and its buffers as the forward pass left them."""
        before = []
        for name, places in self.places.items():
            value = params[name]
            for members, key in places:
                before.append((members, key, members[key]))
                members[key] = value
        try:
            output = self.module(*inputs)
            buffers = {name: members[key] for name, (members, key) in self.buffers.items()}
        finally:
            after_backward(restore, before)
        return output, buffers

    def on_copies(self, params: Params, inputs: Sequence[Any]) -> tuple[Any, Params]:
        """The same with copies of the buffers, which a forward pass edits in place."""
        if not self.buffers:
            return self(params, inputs)
        return self({n: p.clone() if n in self.buffers else p for n, p in params.items()}, inputs)


def restore(before: Sequence[tuple[dict[str, Any], str, Tensor]]) -> None:
    """Put tensors back into their places."""
    for members, key, value in before:
        members[key] = value


def tensor_names(module: nn.Module) -> dict[int, str]:
    """The one name of every parameter and buffer, by the tensor's identity."""
    return {id(p): n for n, p in tree.module_tensors(own_module(module)).items()}


@dataclass(frozen=True)
class TwoParts:
    """A model cut in two: ``features(params, inputs)`` per row, and ``rest(params, features)``, which is the output."""

    count: int
    features: Callable[[Params, Sequence[Tensor]], tuple[Tensor, ...]]
    rest: Callable[[Params, Sequence[Tensor]], tuple[Tensor, Params]]
    layers: list[Layer] | None
    """What the second part is, where it is nothing but layers one after the other."""


def divide(
    module: nn.Module, trained: frozenset[str], params: Params, inputs: Sequence[Tensor], *, quick: bool = False
) -> TwoParts | str | None:
    """Cut ``module`` where the ``trained`` parameters begin, or say why it cannot be cut; ``quick`` without an export.

    None where there is nothing to cut off: no parameter comes before the trained ones.

    ``inputs`` hold a few rows on which the cut is tried: features must be tensors with a row for every example, must
    not be random, and must not depend on the other rows of the batch.
    """
    trace = _trace(module, params, inputs, quick=quick)
    if isinstance(trace, str):
        return trace
    names = tensor_names(module)
    graphs = _cut_graph(*trace, trained, names)
    if graphs is None:
        return None
    prefix, suffix = (Call(fx.GraphModule(trace[0], part), names) for part in graphs)

    def features(params: Params, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # Buffers of the prefix are not kept: what changes them (BatchNorm while training) is refused below.
        return prefix.on_copies(params, inputs)[0]  # type: ignore[no-any-return]

    count = sum(node.op == "placeholder" for node in graphs[1].nodes)
    parts = TwoParts(count, features, suffix.on_copies, list_graph_layers(suffix.module, graphs[1], names))
    objection = _find_objection(prefix.module, parts, params, inputs)
    objection = objection or _find_difference(module, parts, params, inputs)
    if not objection and trace[0] is not module:  # a graph of several rows, where one row may go another way
        objection = _find_difference(module, parts, params, [column[:1] for column in inputs])
    return objection or parts


def _trace(
    module: nn.Module, params: Params, inputs: Sequence[Tensor], *, quick: bool
) -> tuple[nn.Module, fx.Graph] | str:
    """The graph of a module, and what holds the tensors its nodes name; or why there is none."""
    with fork_rng(devices=()):  # what runs within may draw
        try:
            return module, _pick_output(fx.Tracer().trace(module))
        except Exception as error:  # tracing runs the user's code, which may raise anything
            if quick:
                return f"the model cannot be traced ({_shorten(error)})"
        try:
            with _hush(), leave_block():
                return _export(module, params, inputs)
        except Exception as error:
            return f"the model cannot be traced ({_shorten(error)})"


@contextmanager
def _hush() -> Iterator[None]:
    """Keep to itself what torch prints and logs where it cannot make a graph."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(level)


def _export(module: nn.Module, params: Params, inputs: Sequence[Tensor]) -> tuple[nn.Module, fx.Graph]:
    """The graph that ``torch.export`` makes, for any number of rows; it raises where the code depends on values."""
    buffers = Call(module).on_copies(params, [column.clone() for column in inputs])[1]
    if not all(torch.equal(buffer, params[name]) for name, buffer in buffers.items()):
        raise ValueError("its forward pass changes buffers")  # such an operation leads to no output
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own imports
        from torch.export import Dim, export
    rows = Dim("rows", min=2)
    # One row alone would be taken for a constant.
    several = tuple(column.repeat(3, *[1] * (column.dim() - 1)) for column in inputs)
    whole = (
        module
        if isinstance(module, InputsByName)
        else InputsByName(module, [f"column {k}" for k in range(len(inputs))])
    )
    program = export(whole, several, dynamic_shapes=(tuple({0: rows} for _ in several),), strict=False)
    graph_module = program.module(check_guards=False)  # with the very parameters of the module, and constants
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:  # which cannot run for a block of clients
            node.op, node.target = "call_method", "size"
    return graph_module, _pick_output(graph_module.graph)


def _pick_output(graph: fx.Graph) -> fx.Graph:
    """Let a graph give the one tensor that its output stands for."""
    end = graph.output_node()
    end.args = (find_output(end.args[0]),)
    return graph


def _cut_graph(
    module: nn.Module, graph: fx.Graph, trained: frozenset[str], names: Mapping[int, str]
) -> tuple[fx.Graph, fx.Graph] | None:
    """The two graphs; None where nothing is computed before the trained parameters, or they do not reach the output.

    ``names`` are those of the user's model, by tensor identity.
    """
    after_parameters: set[fx.Node] = set()  # by a trained parameter
    after_inputs: set[fx.Node] = set()  # by an input
    owns: set[fx.Node] = set()  # parameters that are not trained
    for node in graph.nodes:
        parameters = [names[id(p)] for p in _list_parameters(module, node) if id(p) in names]
        if any(n in trained for n in parameters) or any(a in after_parameters for a in node.all_input_nodes):
            after_parameters.add(node)
        elif parameters:
            owns.add(node)
        if node.op == "placeholder" or any(a in after_inputs for a in node.all_input_nodes):
            after_inputs.add(node)
    end = next(n for n in graph.nodes if n.op == "output")
    border = [
        n
        for n in graph.nodes
        if n in after_inputs and n not in after_parameters and any(u in after_parameters for u in n.users)
    ]
    counts = {n for n in border if n.op == "call_method" and n.target == "size" and n.args[1:] == (0,)}
    border = [n for n in border if n not in counts]  # how many rows there are can be seen from any feature
    if end not in after_parameters or not owns & _find_ancestors(border):
        return None
    before, after = fx.Graph(), fx.Graph()
    first_copies: dict[fx.Node, fx.Node] = {}
    ancestors = _find_ancestors(border)
    for node in graph.nodes:
        if node.op == "placeholder" or node in ancestors:
            first_copies[node] = before.node_copy(node, lambda n: first_copies[n])
    before.output(tuple(first_copies[n] for n in border))
    last_copies: dict[fx.Node, fx.Node] = {n: after.placeholder(f"feature_{i}") for i, n in enumerate(border)}
    last_copies |= {n: after.call_method("size", (last_copies[border[0]], 0)) for n in counts}
    rest = _find_ancestors([end], stop={*border, *counts})
    for node in graph.nodes:
        if node in rest and node not in last_copies and node.op != "placeholder":
            last_copies[node] = after.node_copy(node, lambda n: last_copies[n])
    return before, after


def _list_parameters(module: nn.Module, node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(module.get_submodule(str(node.target)).parameters())
    if node.op == "get_attr":
        owner, _, name = str(node.target).rpartition(".")
        value = getattr(module.get_submodule(owner), name)
        return [value] if isinstance(value, nn.Parameter) else []
    return []


def _find_ancestors(nodes: Sequence[fx.Node], stop: set[fx.Node] | None = None) -> set[fx.Node]:
    """The nodes themselves and all they depend on, not looking past ``stop``."""
    ancestors: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in ancestors:
            ancestors.add(node)
            if not (stop and node in stop):
                todo += node.all_input_nodes
    return ancestors


def _shorten(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def _find_difference(module: nn.Module, parts: TwoParts, params: Params, inputs: Sequence[Tensor]) -> str | None:
    """Why the two parts do not give what the model gives: a value that tracing froze (noise, a flag) shows here."""
    whole = Call(module)
    try:
        for seed in (1, 2):
            own = {n: p.clone() for n, p in params.items()}
            with torch.no_grad(), fork_rng(devices=()):
                torch.default_generator.manual_seed(seed)
                expected = find_output(whole(own, [column.clone() for column in inputs])[0])
                torch.default_generator.manual_seed(seed)
                output = parts.rest(params, parts.features(params, [column.clone() for column in inputs]))[0]
            if not (isinstance(expected, Tensor) and torch.allclose(expected, output, rtol=1e-4, atol=1e-5)):
                return "the traced model gives other numbers than the model"
    except Exception as error:
        return f"its parts cannot be run alone ({_shorten(error)})"
    return None


def _find_objection(prefix: nn.Module, parts: TwoParts, params: Params, inputs: Sequence[Tensor]) -> str | None:
    """Why the features cannot be kept, found by trying; None if they can."""
    if any(isinstance(m, nn.modules.batchnorm._NormBase) for m in prefix.modules()):
        return "a normalisation over the batch, in training mode, before the trained parameters"
    try:
        with torch.no_grad(), fork_rng(devices=()):
            first, again = parts.features(params, inputs), parts.features(params, inputs)
            fewer = parts.features(params, [column[:-1] for column in inputs])
    except Exception as error:
        return f"its first part cannot be run alone ({_shorten(error)})"
    rows = len(inputs[0])
    for a, b, c in zip(first, again, fewer, strict=True):
        if not isinstance(a, Tensor) or a.dim() == 0 or len(a) != rows or len(c) != rows - 1:
            return "a value that is not one row per example crosses from its first part to its second"
        if not torch.equal(a, b):
            return "random numbers (dropout) before the trained parameters"
        if not torch.allclose(a[:-1], c, rtol=1e-4, atol=1e-5):
            return "examples of a batch are mixed before the trained parameters"
    return None
