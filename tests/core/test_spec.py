"""What a configuration file can say, and the way back."""

import tomllib

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from through_a_file import check_rebuilt

import moiety as mo
from moiety.errors import MoietyError
from moiety.models import MODELS
from moiety.run.build import algorithm_from
from moiety.spec import build, plain, recorded, spec_of, writable
from moiety.types import Schedule

CASES = [
    (mo.fedavg(shared=0.1), {"name": "fedavg", "shared": 0.1}),
    (
        mo.fedalt(shared=mo.sgd(0.1, clip=0.5), personal=mo.sgd(0.2, steps=3, clip=0.5), stateful=False),
        {
            "name": "fedalt",
            "shared": {"name": "sgd", "lr": 0.1, "clip": 0.5},
            "personal": {"name": "sgd", "lr": 0.2, "steps": 3, "clip": 0.5},
            "stateful": False,
        },
    ),
    (
        mo.fedsim(shared=1.0, personal=2.0, server=mo.server.adam(lr=0.01), schedule=mo.schedule.linear(warmup=0.3)),
        {
            "name": "fedsim",
            "shared": 1.0,
            "personal": 2.0,
            "server": {"name": "adam", "lr": 0.01},
            "schedule": {"name": "linear", "warmup": 0.3},
        },
    ),
    (
        mo.local_only(personal=mo.sgd(0.3, epochs=2, batch_size="all", shuffle=False)),
        {
            "name": "local_only",
            "personal": {"name": "sgd", "lr": 0.3, "epochs": 2, "batch_size": "all", "shuffle": False},
        },
    ),
    (
        mo.finetune(personal=mo.sgd(0.3, epochs=5)),
        {"name": "finetune", "personal": {"name": "sgd", "lr": 0.3, "epochs": 5}},
    ),
    (
        mo.ditto(personal=mo.sgd(0.1, epochs=5, pull=0.2), form="finetune"),
        {"name": "ditto", "form": "finetune", "personal": {"name": "sgd", "lr": 0.1, "epochs": 5, "pull": 0.2}},
    ),
    (
        mo.pfedme(shared=0.1, personal=mo.sgd(0.2, pull=15, steps=3), server=mo.server.sgd(lr=0.5)),
        {
            "name": "pfedme",
            "shared": 0.1,
            "personal": {"name": "sgd", "lr": 0.2, "pull": 15, "steps": 3},
            "server": {"name": "sgd", "lr": 0.5},
        },
    ),
    (
        mo.fedper(shared=mo.sgd(0.1, epochs=4, momentum=0.9)),
        {"name": "fedper", "shared": {"name": "sgd", "lr": 0.1, "epochs": 4, "momentum": 0.9}},
    ),
    (mo.fedrep(shared=mo.sgd(0.1, steps=1)), {"name": "fedrep", "shared": {"name": "sgd", "lr": 0.1, "steps": 1}}),
    (
        mo.fedpop(
            shared=0.1, personal=mo.kernel.sgld(step=0.01, batch_size=8), prior=mo.prior.laplace(scale=0.5), samples=4
        ),
        {
            "name": "fedpop",
            "shared": 0.1,
            "personal": {"name": "sgld", "step": 0.01, "batch_size": 8},
            "prior": {"name": "laplace", "scale": 0.5},
            "samples": 4,
        },
    ),
    (mo.lg_fedavg(shared=0.1, weighting="uniform"), {"name": "lg_fedavg", "shared": 0.1, "weighting": "uniform"}),
    (
        mo.per_fedavg(shared=0.1, personal=mo.sgd(0.01, steps=2), form="first_order"),
        {
            "name": "per_fedavg",
            "shared": 0.1,
            "personal": {"name": "sgd", "lr": 0.01, "steps": 2},
            "form": "first_order",
        },
    ),
    (mo.apfl(shared=0.1, alpha=0.25, alpha_lr=0.2), {"name": "apfl", "shared": 0.1, "alpha": 0.25, "alpha_lr": 0.2}),
    (
        mo.ffgg(shared=0.1, personal=mo.solver.conjugate_gradient(steps=5), random_start=3),
        {"name": "ffgg", "shared": 0.1, "personal": {"name": "conjugate_gradient", "steps": 5}, "random_start": 3},
    ),
    (
        mo.local_ffgg(
            shared=mo.sgd(0.1, steps=4, shuffle=False), personal=0.2, solver=mo.sgd(0.3, epochs=1, batch_size=8)
        ),
        {
            "name": "local_ffgg",
            "shared": {"name": "sgd", "lr": 0.1, "steps": 4, "shuffle": False},
            "personal": 0.2,
            "solver": {"name": "sgd", "lr": 0.3, "epochs": 1, "batch_size": 8},
        },
    ),
    (
        mo.scaffold(shared=mo.sgd(0.1, batch_size=8), option="I", server=mo.server.sgd(lr=0.5)),
        {
            "name": "scaffold",
            "shared": {"name": "sgd", "lr": 0.1, "batch_size": 8},
            "option": "I",
            "server": {"name": "sgd", "lr": 0.5},
        },
    ),
    (mo.local_gd(shared=mo.sgd(0.1, steps=5)), {"name": "local_gd", "shared": {"name": "sgd", "lr": 0.1, "steps": 5}}),
    (
        mo.l2gd(personal=mo.sgd(0.1, pull=0.2), probability=0.05, coins=3),
        {"name": "l2gd", "personal": {"name": "sgd", "lr": 0.1, "pull": 0.2}, "probability": 0.05, "coins": 3},
    ),
    (
        mo.fedspa(
            shared=0.1, density=0.4, search="rsm", masks="different", schedule=mo.schedule.geometric(factor=0.998)
        ),
        {
            "name": "fedspa",
            "shared": 0.1,
            "density": 0.4,
            "search": "rsm",
            "masks": "different",
            "schedule": {"name": "geometric", "factor": 0.998},
        },
    ),
    (
        mo.sub_fedavg(shared=mo.sgd(0.1, epochs=3), distance=0.0),
        {"name": "sub_fedavg", "shared": {"name": "sgd", "lr": 0.1, "epochs": 3}, "distance": 0.0},
    ),
    (mo.subsampling(shared=0.1, rescale=True), {"name": "subsampling", "shared": 0.1, "rescale": True}),
    (
        mo.glocal_sgd(
            shared=mo.online(0.1, rule="adagrad"),
            personal=mo.online(0.2, rule="adagrad", radius=2.0),
            longest_round_trip=4,
        ),
        {
            "name": "glocal_sgd",
            "shared": {"name": "online", "lr": 0.1, "rule": "adagrad"},
            "personal": {"name": "online", "lr": 0.2, "rule": "adagrad", "radius": 2.0},
            "longest_round_trip": 4,
        },
    ),
    (
        mo.central(shared=mo.online(0.1, radius=3.0)),
        {"name": "central", "shared": {"name": "online", "lr": 0.1, "radius": 3.0}},
    ),
    (
        mo.independent(personal=mo.online(0.1, steps=20)),
        {"name": "independent", "personal": {"name": "online", "lr": 0.1, "steps": 20}},
    ),
]


@pytest.mark.parametrize(("algorithm", "spec"), CASES, ids=[spec["name"] for _, spec in CASES])
def test_an_algorithm_remembers_how_it_was_made_and_is_made_again(algorithm, spec):
    """As every row of the conformance table, here with all kinds of arguments."""
    check_rebuilt(algorithm, spec)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("fedalt2", "`algorithm.name` must be one of the known names, got 'fedalt2'. Did you mean fedalt?"),
        ({"shared": 0.1}, "`algorithm.name` must be given, got nothing."),
        (
            {"name": "fedavg", "shared": 0.1, "weigting": "uniform"},
            "`algorithm` must be a table of known keys for fedavg, got weigting. Did you mean weighting",
        ),
        (
            {"name": "fedavg", "shared": {"name": "sgd", "lr": 0.1, "epoch": 2}},
            "`algorithm.shared` must be a table of known keys for sgd, got epoch. Did you mean epochs",
        ),
        ({"name": "fedavg"}, "`algorithm` must be complete for fedavg, got no shared."),
        ({"name": "fedavg", "shared": {"name": "sgd"}}, "`algorithm.shared` must be complete for sgd, got no lr."),
        ({"name": "fedavg", "shared": {"lr": 0.1}}, "`algorithm.shared.name` must be given, got nothing."),
        ({"name": "fedavg", "shared": "quick"}, "`algorithm.shared.name` must be one of the known names, got 'quick'."),
        ({"name": "fedavg", "shared": {"name": "sgd", "lr": "quick"}}, "`algorithm.shared.lr` must be a number"),
        ({"name": "fedavg", "shared": {"name": "sgd", "lr": 0.1, "epochs": 1.5}}, "`algorithm.shared.epochs` must be "),
        ({"name": "fedavg", "shared": -1.0}, "`shared` must be > 0 and finite, got -1.0."),
        ({"name": "fedavg", "shared": {"name": "sgd", "lr": -1.0}}, "`lr` must be > 0 and finite, got -1.0."),
        (
            {"name": "fedavg", "shared": 0.1, "server": {"name": "adm"}},
            "`algorithm.server.name` must be one of the known names",
        ),
        (
            {"name": "fedavg", "shared": 0.1, "weighting": "example"},
            "`weighting` must be one of the known names, got 'example'. Did you mean",
        ),
    ],
)
def test_a_wrong_table_ends_in_one_line(spec, text):
    with pytest.raises(MoietyError) as error:
        algorithm_from(spec)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


SIMPLE = st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(SIMPLE, max_size=4))
def test_what_is_writable_can_stand_in_a_file(values):
    assert writable(values)
    assert tomllib.loads(tomli_w.dumps({"k": plain(values)}))["k"] == values


def test_what_no_file_can_hold_is_left_out():
    class Made:
        spec: dict

    @recorded
    def make(a, b=None, c=1):
        return Made()

    assert make(2, b=object(), c=3).spec == {"name": "make", "a": 2, "c": 3, "own": "b"}
    assert make(2).spec == {"name": "make", "a": 2}
    assert spec_of(object()) is None
    assert not writable(None)
    assert make((1, 2)).spec["a"] == [1, 2]


def test_a_thing_of_ones_own_that_could_carry_a_spec_but_does_not_is_named():
    """A schedule made by hand has an empty spec: there is nothing to write, and the table says what is missing."""
    own = Schedule(lambda t, rounds: 1.0)
    assert mo.fedavg(shared=0.1, schedule=own).spec == {"name": "fedavg", "shared": 0.1, "own": "schedule"}


def test_build_gives_what_files_cannot_hold():
    def table(model, width: int = 1):
        return (model, width)

    assert build("split", {"table": table}, {"name": "table", "width": 2}, extra={"model": "net"}) == ("net", 2)
    with pytest.raises(MoietyError, match=r"known keys for table, got model"):
        build("split", {"table": table}, {"name": "table", "model": 2}, extra={"model": "net"})


@pytest.mark.parametrize("name", ["fedpop", "ffgg"])
@pytest.mark.parametrize("personal", [3, ["a"], None, True])
def test_what_is_neither_a_name_nor_a_table_is_one_line(name, personal):
    with pytest.raises(MoietyError, match=r"^`algorithm.personal` must be a name or a table with a name, got") as error:
        algorithm_from({"name": name, "personal": personal, "shared": 0.1})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shared", [["a"], None, True])
def test_what_is_no_number_either_is_one_line(shared):
    with pytest.raises(
        MoietyError, match=r"^`algorithm.shared` must be (a number or )?a name or a table with a name, got"
    ):
        algorithm_from({"name": "fedavg", "shared": shared})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "mlp", "inputs": 4, "outputs": 2, "hidden": "16"}, "`model.hidden` must be a list"),
        ({"name": "mlp", "inputs": 4, "outputs": 2, "hidden": [3, "x"]}, "`model.hidden.2` must be a whole number"),
    ],
)
def test_kinds_of_values_are_in_our_words(values, text):
    with pytest.raises(MoietyError, match=text):
        build("model", MODELS, values)
