"""Things that can be written into a configuration file: a name and its arguments.

A builder decorated with ``recorded`` returns a value that remembers how it was made, so that a run folder can
say it in TOML and a later run can make it again. ``build`` is the way back.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from pydantic import ConfigDict, ValidationError, create_model

from moiety.errors import MoietyError, choice, message, must, near

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
}
"""What pydantic's kinds of errors (``int_parsing``, ``int_type`` ...) ask for, by the first word of their names."""


def recorded(builder: Callable[P, R]) -> Callable[P, R]:
    """Let what ``builder`` returns carry ``spec``: the builder's name and the arguments it was given.

    An argument ``model`` is left out: a configuration names the model in a place of its own.
    """
    signature = inspect.signature(builder)

    @functools.wraps(builder)
    def build_and_record(*args: P.args, **kwargs: P.kwargs) -> R:
        made = builder(*args, **kwargs)
        bound = signature.bind(*args, **kwargs).arguments
        given = {k: v for k, v in bound.items() if v is not None and k != "model"}
        spec: Spec = {"name": builder.__name__, **{k: plain(v) for k, v in given.items() if writable(v)}}
        own = [k for k, v in given.items() if not writable(v)]
        if own:  # made with something that no file can hold, so it cannot be made again from this table
            spec["own"] = ", ".join(own)
        object.__setattr__(made, "spec", spec)
        return made

    return build_and_record


def writable(value: object) -> bool:
    """Whether a value can stand in a TOML file: numbers, texts, lists of them, and recorded things."""
    if isinstance(value, list | tuple | range):
        return all(writable(v) for v in value)
    spec = spec_of(value)
    return isinstance(value, numbers.Real | str) or (spec is not None and "own" not in spec)


def plain(value: object) -> Any:
    """The value as TOML writes it: a recorded thing becomes its table."""
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int | float):  # a number of NumPy's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return spec_of(value) or value


def spec_of(thing: object) -> Spec | None:
    """How a recorded thing was made, or None for something of the user's own."""
    found = getattr(thing, "spec", None)
    return found if isinstance(found, dict) and found else None


def build(
    kind: str,
    table: Mapping[str, Callable[..., Any]],
    spec: Spec | str,
    inner: Mapping[str, Callable[[Any], Any]] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Make the thing that ``spec`` describes, with one of the builders of ``table``.

    ``inner`` turns the nested tables among its arguments (a partition, a schedule) into what they describe;
    ``given`` are arguments that no file can hold (a model).
    """
    must(isinstance(spec, str | Mapping), kind, "a name or a table with a name", f"{spec!r:.60}")
    arguments = {"name": spec} if isinstance(spec, str) else dict(spec)
    must("name" in arguments, f"{kind}.name", "given", "nothing", near("", table))
    name = arguments.pop("name")
    choice(f"{kind}.name", name, table)
    arguments = {k: inner[k](v) if inner and k in inner else v for k, v in arguments.items()}
    return table[name](**(given or {}), **checked(kind, table[name], arguments, given or {}))


def checked(kind: str, builder: Callable[..., Any], arguments: Spec, given: Mapping[str, Any]) -> Spec:
    """The arguments, known to the builder and of its types; unknown ones are refused with the nearest known."""
    parameters = {k: p for k, p in inspect.signature(builder, eval_str=True).parameters.items() if k not in given}
    for key in arguments:
        hint = nearest(key, parameters)
        must(key in parameters, kind, f"a table of known keys for {builder.__name__}", key, hint)
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in arguments]
    must(not missing, kind, f"complete for {builder.__name__}", f"no {', '.join(missing)}")
    types = {k: Any if p.annotation is p.empty else p.annotation for k, p in parameters.items()}
    return check_types(kind, types, arguments, strict=False)


def check_types(where: str, types: Mapping[str, Any], values: Mapping[str, Any], *, strict: bool) -> Spec:
    """The values of the table ``where``, of the types that their keys have; unless ``strict``, "1" stands for 1."""
    config = ConfigDict(strict=strict, arbitrary_types_allowed=True)
    fields: dict[str, Any] = {key: (types[key], ...) for key in values}
    try:
        checked_values = create_model(where, __config__=config, **fields)(**values)
    except ValidationError as error:
        raise one_line(error.errors(), [where]) from None
    return {key: getattr(checked_values, key) for key in values}


def one_line(errors: Sequence[Mapping[str, Any]], above: Sequence[str] = ()) -> MoietyError:
    """The first value that pydantic refuses, in our words; ``above`` is where its table stands.

    A value that may be of several kinds has an error for each. Places in a list are counted from 1.
    """
    first = errors[0]
    alike = [each for each in errors if each["loc"][:1] == first["loc"][:1]]
    place = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    wanted = list(dict.fromkeys(map(_wanted, alike)))
    if len(alike) > 1:  # the rest of the place says which kind was tried
        place = place[:1]
    got = first["input"]
    if wanted == ["a list"] and isinstance(got, int | float | str):
        wanted = [f"a list, as in [{got!r}]"]
    return MoietyError(message(".".join([*above, *place]), " or ".join(wanted), repr(got)))


def _wanted(error: Mapping[str, Any]) -> str:
    if error["type"] == "is_instance_of":
        wanted = str(error["ctx"]["class"])
        return "a list" if wanted in ("Sequence", "Iterable") else f"a {wanted}"
    text = str(error["msg"])
    return _WANTED.get(error["type"].partition("_")[0], text[:1].lower() + text[1:]).removeprefix("input should be ")


def nearest(key: str, known: Iterable[str]) -> str:
    """The known keys nearest to this one, or else all of them.

    >>> nearest("zzz", [f"key{n}" for n in range(3)])
    'Known: key0, key1, key2.'
    """
    names = sorted(known)
    hint = near(key, names)
    return f"Known: {', '.join(names)}." if hint.startswith("Known:") else hint
