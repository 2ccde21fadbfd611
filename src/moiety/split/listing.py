"""Read a model's names, match patterns against them, and put every name into its group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from typing import ParamSpec

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from moiety.errors import choice, must, near
from moiety.split.base import Split
from moiety.types import Names

P = ParamSpec("P")
Patterns = str | Sequence[str]
GROUPS = ("personal", "frozen", "shared")
RUNNING_STATS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Listing:
    """A model's parameters and buffers by name; ``aliases`` gives the one name of each tied tensor's every name."""

    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    statistics: frozenset[str]
    aliases: dict[str, str]

    @property
    def names(self) -> Names:
        """All names, parameters first."""
        return (*self.parameters, *self.buffers)

    @property
    def trainable(self) -> Names:
        """The parameters that ask for a gradient."""
        return tuple(name for name, value in self.parameters.items() if value.requires_grad)


def read(model: nn.Module) -> Listing:
    """The names of a model, or an error if it is no model that can be split."""
    is_module = isinstance(model, nn.Module)
    kind = type(model).__name__
    must(is_module, "model", "a torch.nn.Module", f"a {kind}", "Give the module itself, not its class or its values.")
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    must(bool(parameters), "model", "a torch.nn.Module with parameters", f"a {kind} without any")
    lazy = [name for name, value in {**parameters, **buffers}.items() if is_lazy(value)]
    must(not lazy, "model", "of known sizes", f"{kind} with {_few(lazy)} unset", "Pass one batch through it first.")
    own = {id(value): name for name, value in {**parameters, **buffers}.items()}
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    aliases = {name: own[id(value)] for name, value in every}
    statistics = frozenset(own[id(value)] for value in _running_statistics(model))
    return Listing(parameters, buffers, statistics, aliases)


def _running_statistics(model: nn.Module) -> Iterator[Tensor]:
    """The buffers in which batch and instance normalisation keep what they have seen."""
    for module in model.modules():
        if isinstance(module, _NormBase):
            held = (module._buffers.get(name) for name in RUNNING_STATS)
            yield from (value for value in held if value is not None)


def listed(group: str, patterns: Patterns) -> Sequence[str]:
    """The patterns as a list, where one may be given as a text."""
    several = [patterns] if isinstance(patterns, str) else patterns
    well = isinstance(several, list | tuple) and all(isinstance(pattern, str) for pattern in several)
    must(well, group, "a name pattern or a list of them", repr(patterns))
    return several


def matched(listing: Listing, group: str, patterns: Patterns) -> set[str]:
    """The names that one group's patterns mean; a pattern that means none is an error."""
    found: set[str] = set()
    for pattern in listed(group, patterns):
        hits = {own for name, own in listing.aliases.items() if any(fnmatchcase(p, pattern) for p in paths(name))}
        if not hits:
            # Tail wildcards go before names are compared: "haed.*" is nearest to the module "head".
            known = {path for name in listing.aliases for path in paths(name)}
            hint = near(pattern.rstrip(".*") or pattern, known)
            must(False, group, "patterns that each match a parameter, a buffer or a module", repr(pattern), hint)
        found |= hits
    return found


def paths(name: str) -> list[str]:
    """A name and the modules that it is in: a.b.c, a.b, a."""
    steps = name.split(".")
    return [".".join(steps[:end]) for end in range(len(steps), 0, -1)]


def make(listing: Listing, named: Mapping[str, set[str]], running_stats: str) -> Split:
    """Put every name into its group: where it was named, else where its kind goes."""
    choice("running_stats", running_stats, ("personal", "shared"))
    _check_named(listing, named)
    group_of = {name: group for group in GROUPS for name in named.get(group, ())}
    for name, value in listing.parameters.items():
        group_of.setdefault(name, "shared" if value.requires_grad else "frozen")
    for name in listing.statistics:
        group_of.setdefault(name, running_stats)
    loose = [name for name in listing.buffers if name not in group_of]
    hint = f"Add frozen=[{', '.join(map(repr, loose[:3]))}{', ...' if len(loose) > 3 else ''}], or share them."
    must(not loose, "frozen", "set for buffers that are no running statistics", f"nothing for {_few(loose)}", hint)
    groups = {group: tuple(name for name in listing.names if group_of[name] == group) for group in GROUPS}
    sizes = {name: value.numel() for name, value in {**listing.parameters, **listing.buffers}.items()}
    return Split(
        shared=groups["shared"],
        personal=groups["personal"],
        frozen=groups["frozen"],
        buffers=frozenset(listing.buffers),
        sizes=sizes,
        statistics=listing.statistics,
    )


def _check_named(listing: Listing, named: Mapping[str, set[str]]) -> None:
    """No name in two groups, and none to be trained that asks for no gradient."""
    for one, other in combinations(GROUPS, 2):
        both = [name for name in listing.names if name in named.get(one, ()) and name in named.get(other, ())]
        must(not both, one, f"free of names that `{other}` has too", _few(both), "Leave each in one of the two.")
    fixed = set(listing.parameters) - set(listing.trainable)
    for group in ("personal", "shared"):
        wrong = [name for name in listing.parameters if name in fixed and name in named.get(group, ())]
        hint = "Call requires_grad_(True) on it, or leave it frozen with by_name."
        must(not wrong, group, "parameters that ask for a gradient", f"{_few(wrong)} with requires_grad=False", hint)


def _few(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
