"""A model's names: reading them, matching patterns against them, and the splits that patterns describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from moiety.errors import choice, must, near, refuse
from moiety.spec import recorded
from moiety.split.base import Split, fingerprint, list_first
from moiety.types import Names

Patterns = str | Sequence[str]
Groups = dict[str, set[str]]
"""Names by the group they are put into: ``personal``, ``frozen`` or ``shared``."""
GROUPS = ("personal", "frozen", "shared")
RUNNING_STATS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Listing:
    """A model's parameters and buffers by name; ``aliases`` maps every name of a tied tensor to its one name.

    ``statistics`` are the buffers in which normalisations store what they have seen. ``constants`` are the others that
    hold no floating numbers (positions, masks) or are not saved with the model: they are frozen unless named.
    """

    module: nn.Module
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    statistics: frozenset[str]
    constants: frozenset[str]
    aliases: dict[str, str]

    @property
    def names(self) -> Names:
        """All names, parameters first."""
        return (*self.parameters, *self.buffers)

    @property
    def trainable(self) -> Names:
        """The parameters that require a gradient."""
        return tuple(name for name, value in self.parameters.items() if value.requires_grad)

    @property
    def other_buffers(self) -> set[str]:
        """The buffers that are neither running statistics nor constants."""
        return set(self.buffers) - self.statistics - self.constants

    def names_of(self, tensors: Iterable[Tensor]) -> set[str]:
        """The names of some of the model's parameters, given as tensors."""
        name_of = {id(value): name for name, value in self.parameters.items()}
        return {name_of[id(tensor)] for tensor in tensors}

    def match(self, **patterns: Patterns) -> Groups:
        """The names that each group's patterns match; a pattern that matches none is an error."""
        groups: Groups = {group: set() for group in patterns}
        for group, several in patterns.items():
            for pattern in as_list(group, several):
                names = {name for alias, name in self.aliases.items() if matches(alias, pattern)}
                if not names:
                    # Without wildcards at the end: "haed.*" is nearest to the module "head".
                    paths = {path for alias in self.aliases for path in list_paths(alias)}
                    hint = near(pattern.rstrip(".*") or pattern, paths)
                    constraint = "patterns that each match a parameter, a buffer or a module"
                    refuse(group, constraint, repr(pattern), hint)
                groups[group] |= names
        return groups

    def split_personal(
        self,
        personal: set[str],
        *,
        frozen: Patterns,
        shared: Patterns = (),
        running_stats: str,
        original: nn.Module | None = None,
    ) -> Split:
        """The split in which the names ``personal`` are personal, but for those that a pattern freezes or shares."""
        groups = self.match(frozen=frozen, shared=shared)
        groups["personal"] = personal.difference(*groups.values())
        return self.split(groups, running_stats, original)

    def split(self, groups: Mapping[str, set[str]], running_stats: str, original: nn.Module | None = None) -> Split:
        """Put every name into its group: where ``groups`` has it, else where its kind goes.

        ``original`` is the user's module where this listing is that of a changed copy.
        """
        choice("running_stats", running_stats, ("personal", "shared"))
        self._check(groups)
        group_of = {name: group for group in GROUPS for name in groups.get(group, ())}
        for name, value in self.parameters.items():
            group_of.setdefault(name, "shared" if value.requires_grad else "frozen")
        for name in self.statistics:
            group_of.setdefault(name, running_stats)
        for name in self.constants:
            group_of.setdefault(name, "frozen")
        loose = [name for name in self.buffers if name not in group_of]
        hint = f"Add frozen=[{', '.join(map(repr, loose[:3]))}{', ...' if len(loose) > 3 else ''}], or share them."
        fault = f"nothing for {list_first(loose)}"
        must(not loose, "frozen", "set for floating buffers that are no running statistics", fault, hint)
        personal, frozen, shared = (tuple(name for name in self.names if group_of[name] == g) for g in GROUPS)
        split = Split(
            shared=shared,
            personal=personal,
            frozen=frozen,
            buffers=frozenset(self.buffers),
            sizes={name: value.numel() for name, value in {**self.parameters, **self.buffers}.items()},
            statistics=self.statistics,
        )
        return split if original is None else replace(split, model=self.module, source=fingerprint(original))

    def _check(self, groups: Mapping[str, set[str]]) -> None:
        """Raise where a name is in two groups, or one to be trained requires no gradient."""
        for one, other in combinations(GROUPS, 2):
            both = [name for name in self.names if name in groups.get(one, ()) and name in groups.get(other, ())]
            fault, hint = list_first(both), "Leave each in one of the two."
            must(not both, one, f"free of names that `{other}` has too", fault, hint)
        fixed = set(self.parameters) - set(self.trainable)
        for group in ("personal", "shared"):
            wrong = [name for name in self.parameters if name in fixed and name in groups.get(group, ())]
            fault = f"{list_first(wrong)} with requires_grad=False"
            hint = "Call requires_grad_(True) on it, or leave it frozen with by_name."
            must(not wrong, group, "parameters that ask for a gradient", fault, hint)


def read_names(model: nn.Module) -> Listing:
    """The names of a model; raise where it is no model that can be split."""
    kind = type(model).__name__
    hint = "Give the module itself, not its class or its values."
    must(isinstance(model, nn.Module), "model", "a torch.nn.Module", f"a {kind}", hint)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    must(bool(parameters), "model", "a torch.nn.Module with parameters", f"a {kind} without any")
    lazy = [name for name, value in {**parameters, **buffers}.items() if is_lazy(value)]
    fault = f"{kind} with {list_first(lazy)} unset"
    must(not lazy, "model", "of known sizes", fault, "Pass one batch through it first.")
    name_of = {id(value): name for name, value in {**parameters, **buffers}.items()}
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    aliases = {name: name_of[id(value)] for name, value in every}
    statistics = frozenset(name_of[id(value)] for value in _running_statistics(model))
    constants = frozenset(name_of[id(value)] for value in _constant_buffers(model)) - statistics
    return Listing(model, parameters, buffers, statistics, constants, aliases)


def _running_statistics(model: nn.Module) -> Iterator[Tensor]:
    """The buffers in which batch and instance normalisation store what they have seen."""
    for module in model.modules():
        if isinstance(module, _NormBase):
            values = (module._buffers.get(name) for name in RUNNING_STATS)
            yield from (value for value in values if value is not None)


def _constant_buffers(model: nn.Module) -> Iterator[Tensor]:
    """The buffers that hold no floating numbers, and those that are not saved with the model."""
    for module in model.modules():
        for name, value in module._buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            if value is not None and not (persistent and (value.is_floating_point() or value.is_complex())):
                yield value


def as_list(name: str, patterns: Patterns) -> Sequence[str]:
    """The patterns as a list; a single one may be a text."""
    several = [patterns] if isinstance(patterns, str) else patterns
    texts = isinstance(several, list | tuple) and all(isinstance(pattern, str) for pattern in several)
    must(texts, name, "a name pattern or a list of them", repr(patterns))
    return several


def list_paths(name: str) -> list[str]:
    """A name and the modules that it is in: a.b.c, a.b, a."""
    steps = name.split(".")
    return [".".join(steps[:end]) for end in range(len(steps), 0, -1)]


def matches(name: str, pattern: str) -> bool:
    """Whether a glob matches a name or a module that it is in."""
    return any(fnmatchcase(path, pattern) for path in list_paths(name))


@recorded
def by_name(
    model: nn.Module,
    *,
    personal: Patterns = (),
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Name what is personal, frozen or shared by patterns; all other parameters are shared.

    A pattern is a glob (``*``, ``?``, ``[ab]``; ``*`` crosses dots) on the full dotted names of parameters, buffers
    and modules. A module means everything in it, so ``head`` and ``head.*`` mean the same. A tied parameter is one
    parameter: any of its names will do, and it goes into one group.

    Parameters with ``requires_grad=False`` are frozen. Running statistics of batch and instance normalisation follow
    ``running_stats`` unless a pattern names them. Buffers of whole numbers and booleans, and those that are not saved
    with the model, are constants: frozen unless named. Every other buffer has to be named.

    Args:
        model: the module to split.
        personal: what each client keeps to itself.
        frozen: what nobody trains.
        shared: what all train together; needed only for buffers, since other parameters are shared anyway.
        running_stats: ``personal`` or ``shared``.

    Returns:
        The split; ``print(split.summary())`` shows it.

    >>> from collections import OrderedDict
    >>> net = nn.Sequential(OrderedDict(body=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    >>> split = by_name(net, personal=["head"])
    >>> split.personal, split.counts()
    (('head.weight', 'head.bias'), {'total': 23, 'shared': 15, 'personal': 8, 'frozen': 0})
    >>> split.spec
    {'name': 'by_name', 'personal': ['head']}
    """
    listing = read_names(model)
    return listing.split(listing.match(personal=personal, frozen=frozen, shared=shared), running_stats)


@recorded
def everything(model: nn.Module, *, frozen: Patterns = (), running_stats: str = "personal") -> Split:
    """Keep the whole model personal: clients share nothing.

    Floating buffers that are saved with the model are personal too; frozen patterns and ``running_stats`` are as in
    ``by_name``.

    >>> everything(nn.Linear(3, 2)).counts()
    {'total': 8, 'shared': 0, 'personal': 8, 'frozen': 0}
    """
    listing = read_names(model)
    personal = {*listing.trainable, *listing.other_buffers}
    return listing.split_personal(personal, frozen=frozen, running_stats=running_stats)


@recorded
def nothing(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Share the whole model, as federated averaging does.

    Running statistics follow ``running_stats`` all the same, and other floating buffers have to be named, as in
    ``by_name``.

    >>> nothing(nn.Linear(3, 2)).counts()
    {'total': 8, 'shared': 8, 'personal': 0, 'frozen': 0}
    """
    listing = read_names(model)
    return listing.split(listing.match(frozen=frozen, shared=shared), running_stats)
