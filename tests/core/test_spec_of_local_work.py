"""Local work describes itself as it is, so that a folder says what was trained and a resumed run trains the same."""

from dataclasses import replace

import pytest

import moiety as mo
from moiety.run.build import algorithm_from

CHANGES = [
    (mo.sgd(0.1, epochs=2), {"pull": 0.5}, {"name": "sgd", "lr": 0.1, "epochs": 2, "pull": 0.5}),
    (
        mo.sgd(0.1, epochs=2, clip=1.0),
        {"epochs": None, "steps": 3},
        {"name": "sgd", "lr": 0.1, "steps": 3, "clip": 1.0},
    ),
    (mo.online(0.1, rule="adagrad"), {"rule": "sgd", "radius": 2.0}, {"name": "online", "lr": 0.1, "radius": 2.0}),
]


@pytest.mark.parametrize(("work", "change", "spec"), CHANGES)
def test_after_replace_too(work, change, spec):
    assert replace(work, **change).spec == spec


def test_an_algorithm_of_such_work_is_built_again_as_it_was():
    work = replace(mo.sgd(0.1, epochs=2), pull=0.5)
    spec = mo.ditto(shared=0.1, personal=work).spec
    assert spec == mo.ditto(shared=0.1, personal=mo.sgd(0.1, epochs=2, pull=0.5)).spec
    assert algorithm_from(spec).spec == spec
