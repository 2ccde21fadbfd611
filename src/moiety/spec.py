"""Values that a configuration file can describe: by a builder's name and its arguments.

A builder decorated with ``recorded`` returns a value that carries this description, so that a run folder can store it
in TOML and a later run can build the value again. ``build`` does that.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from moiety.errors import MoietyError, choice, is_real, message, must, near, refuse

P = ParamSpec("P")
R = TypeVar("R")
Spec = dict[str, Any]
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "sequence": "a list",
    "dict": "a table",
    "model": "a table",
    "dataclass": "a name or a table with a name",
    "Module": "a name or a table with a name",
    "Sequence": "a list",
    "Iterable": "a list",
}
"""What pydantic requires: by the first word of an error's kind (``int_parsing``, ``int_type``), or by a class."""


def recorded(builder: Callable[P, R]) -> Callable[P, R]:
    """Let what ``builder`` returns carry ``spec``: the builder's name and the arguments of the call.

    The argument ``model`` is left out: a configuration has a table of its own for the model.
    """
    signature = inspect.signature(builder)

    @functools.wraps(builder)
    def build_and_record(*args: P.args, **kwargs: P.kwargs) -> R:
        value = builder(*args, **kwargs)
        bound = signature.bind(*args, **kwargs).arguments
        arguments = {k: v for k, v in bound.items() if v is not None and k != "model"}
        spec: Spec = {"name": builder.__name__, **{k: plain(v) for k, v in arguments.items() if writable(v)}}
        unwritable = [k for k, v in arguments.items() if not writable(v)]
        if unwritable:  # no file can hold these arguments, so the value cannot be built from this table
            spec["own"] = ", ".join(unwritable)
        object.__setattr__(value, "spec", spec)
        return value

    return build_and_record


def spec_from_fields(name: str, value: Any) -> Spec:
    """The description of a frozen dataclass that the builder ``name`` makes: its fields that are not the default.

    A value that sets it in ``__post_init__`` has the right one after ``dataclasses.replace`` too.
    """
    options = [each.name for each in fields(value) if each.init and getattr(value, each.name) != each.default]
    return {"name": name, **{option: plain(getattr(value, option)) for option in options}}


def writable(value: object) -> bool:
    """Whether a TOML file can hold a value: numbers, texts, lists of them, and recorded values."""
    if isinstance(value, list | tuple | range):
        return all(writable(v) for v in value)
    spec = spec_of(value)
    return isinstance(value, numbers.Real | str) or (spec is not None and "own" not in spec)


def plain(value: object) -> Any:
    """The value as TOML writes it: a recorded value becomes its table."""
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int | float):  # a number of NumPy's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return spec_of(value) or value


def spec_of(value: object) -> Spec | None:
    """The description of a recorded value, or None for a value without one."""
    spec = getattr(value, "spec", None)
    return spec if isinstance(spec, dict) and spec else None


def table_of(value: object, own: str) -> Spec:
    """The table of a file that describes a value; ``own`` marks and names one that no file can describe."""
    return dict(spec_of(value) or {"own": own})


def build(
    kind: str,
    table: Mapping[str, Callable[..., R]],
    spec: Spec | str,
    inner: Mapping[str, Mapping[str, Callable[..., Any]]] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> R:
    """Build the value that ``spec`` describes, with one of the builders of ``table``.

    ``inner`` has the builders of arguments that are names or tables themselves (a schedule, local work); a number or a
    list in their place is left to the builder. ``extra`` are arguments that no file can hold (a model).
    """
    must(isinstance(spec, str | Mapping), kind, "a name or a table with a name", f"{spec!r:.60}")
    arguments = {"name": spec} if isinstance(spec, str) else dict(spec)
    must("name" in arguments, f"{kind}.name", "given", "nothing", near("", table))
    name = arguments.pop("name")
    choice(f"{kind}.name", name, table)
    for key, builders in (inner or {}).items():
        if key in arguments and not is_real(arguments[key]) and not isinstance(arguments[key], list):
            arguments[key] = build(f"{kind}.{key}", builders, arguments[key], inner)
    return table[name](**(extra or {}), **check_arguments(kind, table[name], arguments, extra or {}))


def check_arguments(
    kind: str, builder: Callable[..., Any], arguments: Spec, extra: Mapping[str, Any], *, complete: bool = True
) -> Spec:
    """The arguments, if they have the types of the builder; raise for those it does not know, with the nearest.

    Where they need not be ``complete``, some may be filled in later.
    """
    parameters = {k: p for k, p in _read_signature(builder).parameters.items() if k not in extra}
    types = {k: Any if p.annotation is p.empty else p.annotation for k, p in parameters.items()}
    # A file has lists only, which stand for tuples, too.
    values = {k: tuple(v) if isinstance(v, list) and _takes_tuple(types.get(k)) else v for k, v in arguments.items()}
    result = check_table(kind, values, types, user=f" for {builder.__name__}")
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in arguments]
    must(not missing or not complete, kind, f"complete for {builder.__name__}", f"no {', '.join(missing)}")
    return result


@functools.lru_cache(maxsize=256)
def _read_signature(builder: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(builder, eval_str=True)


def _takes_tuple(annotation: Any) -> bool:
    return any(each is tuple or get_origin(each) is tuple for each in (annotation, *get_args(annotation)))


def check_table(
    where: str,
    table: Any,
    types: Mapping[str, Any],
    *,
    user: str = "",
    hints: Mapping[str, str] | None = None,
) -> Spec:
    """The values of the table ``where``, if its keys are known and the values have the types of their keys.

    Args:
        where: the name of the table in messages.
        table: what a file has in its place.
        types: the known keys and their types.
        user: who knows the keys, for messages.
        hints: what to do about some unknown keys; for others the nearest known keys are shown.
    """
    must(isinstance(table, dict), where, "a table", repr(table))
    for key in table:
        if key not in types:
            refuse(where, f"a table of known keys{user}", key, (hints or {}).get(key) or near(key, types, None))
    try:
        model = _make_model(where, tuple((key, types[key]) for key in table))(**table)
    except ValidationError as error:
        raise one_line_error(error.errors(), [where]) from None
    return {key: getattr(model, key) for key in table}


@functools.lru_cache(maxsize=256)  # to make one takes longer than all else that is done with a table
def _make_model(name: str, types: tuple[tuple[str, Any], ...]) -> type[BaseModel]:
    entries: dict[str, Any] = {key: (kind, ...) for key, kind in types}
    return create_model(name, __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **entries)


def one_line_error(errors: Sequence[Mapping[str, Any]], above: Sequence[str] = ()) -> MoietyError:
    """Moiety's error for the first value that pydantic refuses; ``above`` is the path of its table.

    A value that may be of several kinds has an error for each. Positions in a list count from 1.
    """
    first = errors[0]
    alike = [each for each in errors if each["loc"][:1] == first["loc"][:1]]
    place = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    constraints = list(dict.fromkeys(map(_describe_constraint, alike)))
    if len(alike) > 1:  # the rest of the place says which kind was tried
        place = place[:1]
    value = first["input"]
    if constraints == ["a list"] and isinstance(value, int | float | str):
        constraints = [f"a list, as in [{value!r}]"]
    return MoietyError(message(".".join([*above, *place]), " or ".join(constraints), repr(value)))


def _describe_constraint(error: Mapping[str, Any]) -> str:
    if error["type"] == "is_instance_of":
        name = str(error["ctx"]["class"])
        return _WANTED.get(name, f"a {name}")
    text = str(error["msg"])
    return _WANTED.get(error["type"].partition("_")[0], text[:1].lower() + text[1:]).removeprefix("input should be ")
