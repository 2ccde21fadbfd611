"""The split: which of a model's names are shared, personal and frozen, as one checked value."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from moiety import tree
from moiety.errors import must, near, refuse
from moiety.types import Names, Params


@dataclass(frozen=True, eq=False)
class Split:
    """The three groups into which a model's parameters and buffers fall.

    Every name of the model is in exactly one of ``shared``, ``personal`` and ``frozen``, in the model's order:
    parameters first, then buffers. Frozen values are the same for all clients, never trained and never sent.

    >>> import moiety as mo
    >>> split = mo.split.output_layer(mo.models.mlp(4, 2, hidden=(8,)))
    >>> split.personal, split.counts()
    (('head.weight', 'head.bias'), {'total': 58, 'shared': 40, 'personal': 18, 'frozen': 0})
    """

    shared: Names
    personal: Names
    frozen: Names
    buffers: frozenset[str]
    """Which of the names are buffers: stored and sent like parameters, but never trained by a gradient."""
    sizes: Mapping[str, int]
    """How many numbers each name holds; the keys are all names of the model."""
    statistics: frozenset[str] = frozenset()
    """Which of the buffers are running statistics of a normalisation layer."""
    model: nn.Module | None = None
    """The module to train where the split changed a copy of the user's module (adapters, a second model)."""
    penalty: Callable[[Params], Tensor] | None = None
    """A function of all parameters that is added to the training loss; never to a score."""
    source: str = ""
    """The fingerprint, names and values, of the user's module that ``model`` is a copy of."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """Names whose first value is that of another name, wherever that one comes from."""
    spec: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter([*self.shared, *self.personal, *self.frozen])
        twice = sorted(name for name, times in counts.items() if times > 1)
        must(not twice, "split", "three groups without a common name", ", ".join(twice))
        loose = sorted(set(counts) ^ set(self.sizes))
        must(not loose, "split", "three groups that cover every name of `sizes` and no other", ", ".join(loose))
        strange = sorted((self.buffers - set(self.sizes)) | (self.statistics - self.buffers))
        must(not strange, "split", "made with buffers of the model", ", ".join(strange))

    @property
    def groups(self) -> dict[str, Names]:
        """The three groups by name."""
        return {"shared": self.shared, "personal": self.personal, "frozen": self.frozen}

    def _drop_buffers(self, names: Names) -> Names:
        return tuple(name for name in names if name not in self.buffers)

    @property
    def trained_shared(self) -> Names:
        """The shared parameters, without buffers."""
        return self._drop_buffers(self.shared)

    @property
    def trained_personal(self) -> Names:
        """The personal parameters, without buffers."""
        return self._drop_buffers(self.personal)

    @staticmethod
    def select(params: Params, names: Iterable[str]) -> Params:
        """The values of the given names, in that order."""
        try:
            return {name: params[name] for name in names}
        except KeyError as missing:
            name = str(missing.args[0])
            refuse("params", f"a dict that holds {name}", "none of that name", near(name, params))

    def parts(self, whole: Params) -> tuple[Params, Params]:
        """The shared and the personal part of a whole model, buffers included."""
        return self.select(whole, self.shared), self.select(whole, self.personal)

    def shared_model(self, shared: Params, personal: Params) -> tuple[Params, Params]:
        """The two parts of the model without personalisation, from the shared part and the first personal part.

        Where a shared name mirrors a personal one (a centre), the personal one takes its value.
        """
        return shared, personal | {other: shared[name] for name, other in self.mirrors.items()}

    def compose(self, shared: Params, personal: Params, frozen: Params) -> Params:
        """The whole model of its three parts.

        A missing name is an error: a module called without it would silently use its own value.
        """
        whole = {**shared, **personal, **frozen}
        if whole.keys() != self.sizes.keys() or len(whole) != len(shared) + len(personal) + len(frozen):
            self._check_parts({"shared": shared, "personal": personal, "frozen": frozen})
        return whole

    def module_for(self, module: nn.Module) -> nn.Module:
        """The module to train where the user passes ``module``.

        That is the split's own module where it has one; or ``module``, where it has the same names already (it is the
        split's module, or a model exported from a run with this split).
        """
        if self.model is None or tree.module_tensors(module).keys() == self.sizes.keys():
            return module
        same = fingerprint(module) == self.source
        fault = f"a split of another module or of other values than this {type(module).__name__} has"
        must(same, "split", "made from the given model as it is now", fault, "Make the split again, from this model.")
        return self.model

    def _check_parts(self, parts: Mapping[str, Params]) -> None:
        """Say which part holds a wrong name."""
        for group, params in parts.items():
            expected = set(self.groups[group])
            missing, extra = sorted(expected - params.keys()), sorted(params.keys() - expected)
            fault = "; ".join([f"no {n}" for n in missing[:3]] + [f"{n} besides" for n in extra[:3]])
            must(not fault, group, f"exactly the names of the {group} part", fault)

    def counts(self) -> dict[str, int]:
        """How many parameters there are in all and in each group; buffers are not parameters."""
        counts = {k: sum(self.sizes[n] for n in self._drop_buffers(names)) for k, names in self.groups.items()}
        return {"total": sum(counts.values()), **counts}

    def summary(self) -> str:
        """A small table: which layers are on the device, how large they are, and how much is shared."""
        counts = self.counts()
        kind = str(self.spec.get("name", "custom")).replace("_", " ").capitalize()
        heads = ["Personalisation type", "Layers on device", "# personal params", "# shared params"]
        row = [kind, _list_layers(self.trained_personal), _number(counts["personal"]), _number(counts["shared"])]
        widths = [max(len(head), len(cell)) for head, cell in zip(heads, row, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip() for cells in (heads, row)]
        lines.append(f"Total: {_number(counts['total'])} parameters, frozen: {_number(counts['frozen'])}")
        lines.append(f"Running statistics: {self._where(self.statistics)}")
        lines.append(f"Other buffers: {self._where(self.buffers - self.statistics)}")
        return "\n".join(lines)

    def _where(self, names: frozenset[str]) -> str:
        """How many of the names are in each group."""
        counts = {group: len(names.intersection(self.groups[group])) for group in ("personal", "shared", "frozen")}
        return ", ".join(f"{count} {group}" for group, count in counts.items() if count) or "none"


def fingerprint(module: nn.Module) -> str:
    """A digest of a module's names, shapes and values (of its shapes alone where there are no values yet)."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in tree.module_tensors(module).items():
        digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
        if not value.is_meta:
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def short_count(count: int) -> str:
    """A count in the style of Tables 5 to 7 of Pillutla et al. (2022).

    >>> [short_count(n) for n in (788_736, 4_942_356, 71_808, 704, 31_806, 9_536, 1_040_364, 12)]
    ['0.8M', '4.9M', '0.07M', '0.7K', '0.03M', '0.01M', '1M', '12']
    """
    if count < 100:
        return str(count)
    # The tables go down to hundredths of a million; what would read 0.00M is given in thousands.
    unit, name = (1_000_000, "M") if count >= 5_000 else (1_000, "K")
    # Two decimals for what is less than a tenth, one otherwise; whole numbers, so that 850 gives 0.9K and not 0.8K.
    parts = 100 if count * 1_000 < 95 * unit else 10
    return f"{(count * parts + unit // 2) // unit / parts:g}{name}"


def _number(count: int) -> str:
    """The exact count, followed by the rounded one where that differs."""
    short = short_count(count)
    return f"{count:,}" if short == str(count) else f"{count:,} ({short})"


def _list_layers(names: Names) -> str:
    """The modules that own the named parameters, the first few by name."""
    owners = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    return list_first(owners, 3) or "none"


def list_first(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
