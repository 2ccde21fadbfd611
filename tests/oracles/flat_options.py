"""Builders called with flat options, for tests that put together the same options for many algorithms.

``flat(mo.fedalt, shared_lr=0.1, personal_lr=0.2, batch_size=8)`` is ``mo.fedalt(shared=mo.sgd(0.1, batch_size=8),
personal=mo.sgd(0.2, batch_size=8))``.
"""

import moiety as mo

SGD = ("epochs", "steps", "batch_size", "shuffle", "momentum", "weight_decay", "clip")
EACH = ("batch_size", "shuffle", "momentum", "weight_decay", "clip")


def _on(part, *names, **renamed):
    return {name: [(part, name)] for name in names} | {name: [(part, new)] for name, new in renamed.items()}


def _both(*names):
    return {name: [("shared", name), ("personal", name)] for name in names}


SHARED, PERSONAL = _on("shared", *SGD, lr="lr"), _on("personal", *SGD, lr="lr")
LENGTHS = _on("shared", shared_lr="lr", shared_epochs="epochs", shared_steps="steps")
LENGTHS |= _on("personal", personal_lr="lr", personal_epochs="epochs", personal_steps="steps")
LENGTH = ("epochs", "steps", "batch_size", "shuffle")
OPTIONS = {
    "fedalt": {**LENGTHS, **_both(*EACH)},
    "fedsim": {**LENGTHS, **_on("shared", *LENGTH, "clip"), **_both("momentum", "weight_decay")},
    "ditto": {**LENGTHS, **_on("shared", "epochs", "steps", lr="lr"), **_both(*EACH), **_on("personal", "pull")},
    "pfedme": {
        **_on("shared", *LENGTH, lr="lr"),
        **_on("personal", "pull", "weight_decay", "momentum", "clip", personal_lr="lr", inner_steps="steps"),
    },
    "apfl": {**_on("shared", *LENGTH, lr="lr"), **_on("personal", personal_lr="lr"), **_both("weight_decay", "clip")},
    "ffgg": {**_on("shared", "batch_size", lr="lr"), "solver": [("personal", "")]},
    "local_ffgg": {**LENGTHS, **_on("shared", *LENGTH), **_both("weight_decay", "clip")},
    "l2gd": _on("personal", "pull", lr="lr"),
    "per_fedavg": {
        **_on("shared", *LENGTH, "weight_decay", "clip", lr="lr"),
        **_on("personal", personal_lr="lr", personal_steps="steps"),
    },
    "glocal_sgd": {
        **LENGTHS,
        **_both("rule"),
        **_on("shared", "batch_size", "shuffle", shared_radius="radius"),
        **_on("personal", personal_radius="radius"),
    },
    "central": _on("shared", "rule", "radius", "batch_size", "shuffle", lr="lr"),
    "independent": _on("personal", "rule", "radius", "steps", "batch_size", "shuffle", lr="lr"),
    "fedrep": {**LENGTHS, **_both("lr", *EACH)},
    "fedpop": {
        **_on("shared", "batch_size", shared_lr="lr", shared_decay="weight_decay"),
        "kernel": [("personal", "")],
    },
    "local_only": PERSONAL,
    "finetune": PERSONAL,
}
ONLINE = ("glocal_sgd", "central", "independent")
ALL_BY_DEFAULT = ("ffgg", "fedpop")


def flat(builder, **options):
    """The algorithm that ``builder`` makes of flat options; those that no part takes go to the builder as they are."""
    name = builder.__name__
    rules = OPTIONS.get(name, SHARED)
    parts, rest = {"shared": {}, "personal": {}}, {}
    for option, value in options.items():
        for part, new in rules.get(option, [("", option)]):
            if not part:
                rest[option] = value
            elif not new:
                rest[part] = value
            elif value is not None:
                parts[part][new] = value
            elif new == "batch_size" and name not in ALL_BY_DEFAULT:
                parts[part][new] = "all"
    if name == "fedrep" and not {"epochs", "steps"} & set(parts["personal"]):
        parts["personal"] = {}
    make = mo.online if name in ONLINE else mo.sgd
    work = {part: make(values.pop("lr"), **values) for part, values in parts.items() if "lr" in values}
    return builder(**work, **rest)
