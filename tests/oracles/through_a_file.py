"""An algorithm, written to a TOML file and built again."""

import tomllib

import tomli_w

from moiety.run.build import algorithm_from


def comparable(phases):
    """Phases with what ``repeats`` says of ten turns in the place of the function."""
    return {
        name: (phase._replace(repeats=None), phase.repeats and [phase.repeats(turn) for turn in range(10)])
        for name, phase in phases.items()
    }


def check_rebuilt(algorithm, spec):
    """Raise unless the algorithm has this description, and a file that holds it gives the same algorithm."""
    assert algorithm.spec == spec
    again = algorithm_from(tomllib.loads(tomli_w.dumps(spec)))
    assert again.spec == spec
    assert (again.name, again.stateful) == (algorithm.name, algorithm.stateful)
    assert comparable(again.phases) == comparable(algorithm.phases)
    for t in range(10):
        assert again.schedule.factor(t, 10) == algorithm.schedule.factor(t, 10)
