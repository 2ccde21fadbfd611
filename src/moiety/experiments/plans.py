"""The scales of a plan, and how options change its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from moiety.errors import must, near, whole

SCALES = ("ci", "laptop", "night", "paper")
"""``ci`` takes seconds and shows only that it runs, ``laptop`` minutes, ``night`` up to an hour; ``paper`` has the
paper's sizes."""
PLAIN = (bool, int, float)
"""What can be set: numbers, flags and lists of them."""


def plain_fields(plan: Any) -> dict[str, Any]:
    """The fields that can be set, with their values: plain ones of the plan and of the dataclasses that it holds."""
    table: dict[str, Any] = {}
    for part in _list_parts(plan):
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        table |= {name: value for name, value in values.items() if _is_plain(value)}
    return table


def change_plan(plan: Any, name: str, value: Any) -> Any:
    """Set a field of the plan, in the plan itself and in every dataclass that it holds."""
    table = plain_fields(plan)
    must(name in table, "--set", "a field of the plan", name, near(name, table))
    if name in ("rounds", "seeds"):
        whole(name, value, 1)
    _check_kind(name, table[name], value)
    return _change(plan, name, tuple(value) if isinstance(value, list) else value)


def _change(plan: Any, name: str, value: Any) -> Any:
    if name == "rounds" and hasattr(plan, "with_rounds"):
        return plan.with_rounds(value)
    changes: dict[str, Any] = {}
    for field in fields(plan):
        inner = getattr(plan, field.name)
        if field.name == name and _is_plain(inner):
            changes[name] = value
        elif is_dataclass(inner):
            changes[field.name] = _change(inner, name, value)
        elif isinstance(inner, tuple) and any(is_dataclass(each) for each in inner):
            changes[field.name] = tuple(_change(each, name, value) for each in inner)
    return replace(plan, **changes)


def _list_parts(plan: Any) -> Iterator[Any]:
    yield plan
    for field in fields(plan):
        inner = getattr(plan, field.name)
        for each in inner if isinstance(inner, tuple) else (inner,):
            if is_dataclass(each) and not isinstance(each, type):
                yield from _list_parts(each)


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(each, PLAIN) for each in value))


def _check_kind(name: str, old: Any, new: Any) -> None:
    """Refuse a fraction for a whole number, a number for a list, and the like."""
    if isinstance(old, tuple):
        must(isinstance(new, list | tuple) and len(new) > 0, name, "a list", repr(new), f"As in {name}={list(old)}.")
        for each in new:
            _check_kind(name, old[0] if old else each, each)
        return
    if isinstance(old, bool) or isinstance(new, bool):
        must(isinstance(old, bool) and isinstance(new, bool), name, f"of the kind of {old!r}", repr(new))
    kinds = (int, float) if isinstance(old, float) else type(old)
    must(isinstance(new, kinds), name, f"of the kind of {old!r}", repr(new))


def describe_plan(value: Any) -> Any:
    """All values of a plan, as JSON holds them, to tell it from others; functions count by their names."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: describe_plan(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): describe_plan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [describe_plan(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)
