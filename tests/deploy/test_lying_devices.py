"""A device that lies, in a thousand ways: it is dropped in one line, and the run ends as if it had sent nothing.

The lies here are found by chance, from seeds. ``test_misbehaviour.py`` has those that somebody thought of.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from safetensors.numpy import load as load_numpy
from safetensors.numpy import save as save_numpy
from test_equals_simulation import exact
from test_misbehaviour import BAD, everything, is_bad, parts, reply

import moiety as mo
from moiety.deploy.letters import REFUSED

Draw = np.random.Generator
DEEP = '{"round": ' + "[" * 100_000 + "]" * 100_000 + "}"
NUMBERS: list[Any] = [10**400, -(10**400), 2**63, 1.7e308, -1.7e308, 1e19, float("nan"), float("inf"), -float("inf")]
NOT_NUMBERS: list[Any] = [None, True, "1", "\ud800", [1.0], {}, {"a": {"b": [10**400]}}]
WEIGHTS: list[Any] = [*NUMBERS, *NOT_NUMBERS, -1.0, 0, 5e-324, 1e-30, 1e6]
INFOS: list[Any] = [*NUMBERS, None, True, "1", [], [["loss", 1.0]], *({"loss": n} for n in NUMBERS)]
CODECS: dict[str, Callable[[], Any]] = {
    "dense": lambda: None,
    "sparse": mo.codec.sparse,
    "qsgd": lambda: mo.codec.qsgd(levels=7),
    "rand_k": lambda: mo.codec.rand_k(k=0.5),
    "masks": lambda: None,
}


def make(folder: Path, codec: str = "dense", **options: Any) -> tuple[Any, LocalGrid]:
    """Four devices, three of them a round; with ``masks`` FedSpa, whose messages are packed by its masks."""
    data, model = federation(), small_model()
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.05, batch_size=4))
    split = mo.split.output_layer(model)
    if codec == "masks":
        algorithm, split = mo.fedspa(shared=mo.sgd(0.1, steps=3, batch_size=4), density=0.5, masks="different"), None
    settings = mo.Settings(codec=CODECS[codec](), partial=False)  # to cut the model takes longer than to train it
    common = {"split": split, "rounds": 5, "cohort": 3, "seed": 5, "deadline": 0.3, "settings": settings}
    app = make_app(model, data, algorithm, folder, **{**common, **options})
    return app, LocalGrid(app, nodes_of(data, folder))


def lie_in_head(draw: Draw, head: dict[str, Any]) -> str:
    """A head that no honest device writes."""
    key = str(draw.choice(["weight", "info", "round", "whole", "cut"]))
    if key == "whole":
        return [DEEP, "null", "3", "[]", "{}", '{"round": 1e999}', "{" + '"a":1,' * 3][int(draw.integers(7))]
    text = json.dumps(head)
    if key == "cut":
        return text[: int(draw.integers(len(text)))]
    wrong = {"weight": WEIGHTS, "info": INFOS, "round": [*NUMBERS, *NOT_NUMBERS, -1, 10**9]}[key]
    return json.dumps({**head, key: wrong[int(draw.integers(len(wrong)))]})


def lie_in_body(draw: Draw, body: bytes) -> bytes:
    """Bytes that no honest device sends: some changed, cut off, added or made up; or numbers that cannot be."""
    kind = int(draw.integers(5))
    if kind == 0:
        return body[: int(draw.integers(len(body)))]
    if kind == 1:
        return draw.bytes(int(draw.integers(1, 2000)))
    if kind == 2:
        at = int(draw.integers(min(len(body), 300)))
        return body[:at] + draw.bytes(int(draw.integers(1, 9))) + body[at + 1 :]
    tensors = {name: np.array(each) for name, each in load_numpy(body).items()}
    name = str(draw.choice(list(tensors)))
    if kind == 3:
        tensors[name] = tensors[name].reshape(-1)[: tensors[name].size // 2]
    else:
        floats = [each for each in tensors.values() if each.dtype.kind == "f" and each.size]
        for each in floats:
            each.reshape(-1)[int(draw.integers(each.size))] = [np.nan, np.inf, -np.inf, 3e38, -1e30][draw.integers(5)]
    return save_numpy(tensors)


def may_be_right(body: bytes, honest: bytes) -> bool:
    """Whether bytes hold tensors as an honest device sends them, with numbers that are small."""
    try:
        one, other = load_numpy(body), load_numpy(honest)
    except Exception:
        return False
    alike = {k: (v.dtype, v.shape) for k, v in one.items()} == {k: (v.dtype, v.shape) for k, v in other.items()}
    return alike and all(bool((abs(v) <= 1e18).all()) for v in one.values() if v.dtype.kind == "f")


@pytest.fixture(scope="module")
def silent(tmp_path_factory: Any) -> Callable[[str], list[Any]]:
    """How a run with a codec ends where the bad device answers nothing at all."""
    ends: dict[str, list[Any]] = {}

    def find(codec: str) -> list[Any]:
        if codec not in ends:
            folder = tmp_path_factory.mktemp("silent")
            app, grid = make(folder, codec)
            grid.deliver = lambda message, call: None if is_bad(grid, message) else call(message)
            ends[codec] = everything(serve_here(app, grid), folder)
        return ends[codec]

    return find


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("codec", CODECS)
def test_a_liar_is_dropped_in_one_line_and_the_run_ends_as_without_it(codec, seed, silent, tmp_path):
    app, grid = make(tmp_path, codec)
    draw, lies = np.random.default_rng([seed, len(codec)]), 0

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        nonlocal lies
        answer = call(message)
        if not is_bad(grid, message):
            return answer
        lies += 1
        head, body = parts(answer)
        if draw.random() < 0.4:
            return reply(message, lie_in_head(draw, head), body)
        wrong = body
        while may_be_right(wrong, body):
            wrong = lie_in_body(draw, body)
        return reply(message, head, wrong)

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert everything(run, tmp_path) == silent(codec)
    reasons = [
        why
        for row in run.history
        for place, why in zip(row["dropped"], row.get("dropped_reasons", ()), strict=True)
        if str(place).endswith(f":{BAD}")
    ]
    assert len(reasons) == lies > 0
    assert all(why and len(why) <= 320 and why.isprintable() for why in reasons)


@pytest.mark.parametrize("codec", CODECS)
def test_whatever_a_device_sends_is_read_or_refused_and_raises_nothing(codec, tmp_path):
    """A few hundred lies read by the server itself; what it takes is finite and no larger than it may be."""
    from moiety.deploy.letters import read_message
    from moiety.errors import MoietyError
    from moiety.loop.exchange import Arrival, Missing

    app, grid = make(tmp_path, codec, rounds=1, cohort=4)
    run = serve_here(app, grid)
    loop, draw = run._loop, np.random.default_rng(len(codec))
    loop.connect(loop.federation)
    message, answer = next((m, a) for _, _, m, a in grid.log if is_bad(grid, m) and a is not None)
    head, body = parts(answer)
    (job,) = loop.make_jobs([1], [loop.progress.store.first()], 0)
    for _ in range(400):
        text = lie_in_head(draw, head) if draw.random() < 0.3 else json.dumps(head)
        lie = reply(message, text, lie_in_body(draw, body))
        try:
            letter: Any = read_message(lie, 1 << 20)
        except MoietyError as error:
            letter = error
        result = loop.devices.read_answer(job, letter, 0)
        assert isinstance(result, Arrival | Missing)
        if isinstance(result, Arrival):
            assert 0 < float(result.update.weight) <= len(body)
            assert all(bool((abs(x.double()) <= 1e18).all()) for x in result.update.upload.values())


LIES = {
    "weight beyond its rows": lambda head, body: ({**head, "weight": 1.7e308}, body),
    "numbers whose sum is infinite": lambda head, body: (head, _fill(body, 3e38)),
    "a weight next to nothing": lambda head, body: ({**head, "weight": 5e-324}, body),
    "a loss beyond all bounds": lambda head, body: ({**head, "info": {"loss": 1e300}}, body),
}


def _fill(body: bytes, value: float) -> bytes:
    return save_numpy({name: np.full_like(each, value) for name, each in load_numpy(body).items()})


@pytest.mark.parametrize("kind", LIES)
def test_finite_lies_that_would_end_the_run_change_nothing(kind, silent, tmp_path):
    app, grid = make(tmp_path)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        return reply(message, *LIES[kind](*parts(answer))) if is_bad(grid, message) else answer

    grid.deliver = deliver
    assert everything(serve_here(app, grid), tmp_path) == silent("dense")


def test_losses_of_one_device_that_grow_and_grow_do_not_end_the_run(tmp_path):
    """A loss below all bounds, but a million times that of others and rising: no sign that the run diverges."""
    folders = [tmp_path / "lies", tmp_path / "honest"]
    ends = []
    for folder in folders:
        app, grid = make(folder, rounds=8, cohort=4, settings=mo.Settings(evaluate_every=1))

        def deliver(message: Message, call: Callable[[Message], Message], context: Any = (folder, grid)) -> Message:
            answer = call(message)
            if context[0] != folders[0] or not is_bad(context[1], message):
                return answer
            head, body = parts(answer)
            grows = 10.0 ** (6 + head["round"]) if head["round"] else head["info"]["loss"]
            return reply(message, {**head, "info": {"loss": grows}}, body)

        grid.deliver = deliver
        ends.append(everything(serve_here(app, grid), folder))
    assert ends[0] == ends[1]


@pytest.mark.filterwarnings("ignore:`updates` must be finite:UserWarning")
@pytest.mark.parametrize("seed", [3, 6, 8])
def test_one_device_alone_in_its_rounds_that_sends_nan_does_not_end_the_run(seed, tmp_path):
    """With a cohort of one, rounds in which nobody else is asked bring nothing; the run goes on to its end."""
    app, grid = make(tmp_path, rounds=24, cohort=1, seed=seed)
    names: list[str] = []

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type == "train":
            names.append(str(grid.nodes[message.metadata.dst_node_id]["name"]))
        return (
            reply(message, *LIES["numbers whose sum is infinite"](*parts(answer))) if is_bad(grid, message) else answer
        )

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert run._loop.progress.round == 24
    assert f"{BAD} " * 3 in " ".join(names)  # so many rounds without a finite answer end a simulation
    assert names.count(BAD) == sum(str(place).endswith(f":{BAD}") for row in run.history for place in row["dropped"])
    assert int(run._loop.progress.store.get([1])[0]["used"]) == -1


@pytest.mark.filterwarnings("ignore:`updates` must be finite:UserWarning")
def test_a_run_in_which_every_device_is_refused_still_ends_as_diverged(tmp_path):
    app, grid = make(tmp_path, rounds=24, cohort=1)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        return (
            reply(message, *LIES[list(LIES)[1]](*parts(answer))) if message.metadata.message_type == "train" else answer
        )

    grid.deliver = deliver
    with pytest.raises(mo.MoietyError, match="finite for some client of a round"):
        serve_here(app, grid)


SCORES: dict[str, list[Callable[[dict[str, Any]], Any]]] = {
    "histogram": [
        lambda scores: {**scores, "metric": 10**400},
        lambda scores: {**scores, "metric": 10**6},
        lambda scores: {**scores, "gain": "1"},
        lambda scores: {},
    ],
    "per_client": [
        lambda scores: {**scores, "loss": 10**400},
        lambda scores: {**scores, "metric": 1e300},
        lambda scores: {**scores, "n_test": 2**62},
        lambda scores: {**scores, "client": 3},
        lambda scores: {**scores, "gain": True},
    ],
}


@pytest.mark.parametrize("share", SCORES)
def test_scores_that_cannot_be_are_left_out_and_those_of_others_are_kept(share, tmp_path):
    """A lie of another kind at each evaluation; the history is that of the others."""
    app, grid = make(tmp_path, rounds=5, share_metrics=share, floor=3, settings=mo.Settings(evaluate_every=1))
    lies = itertools.cycle(SCORES[share])

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type != "evaluate" or grid.nodes[message.metadata.dst_node_id]["name"] != BAD:
            return answer
        head = json.loads(str(answer.content.config_records["head"]["json"]))
        return reply(message, {**head, "scores": next(lies)(head["scores"])}, None)

    grid.deliver = deliver
    run = serve_here(app, grid)
    for row in run.history:
        reasons = [why for place, why in zip(row["dropped"], row["dropped_reasons"], strict=True) if f":{BAD}" in place]
        assert len(reasons) == 1
        assert "not evaluated" in reasons[0]
        assert row["clients"] == 3
        assert share == "histogram" or 0 <= row["metric"] <= 1


ODD_COLUMNS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a whole number among fractions": lambda scores: {**scores, "loss": 10**18 - 1, "shared_loss": 1},
    "a column of its own": lambda scores: {"another": 0.5, **scores},
    "a weight beyond all others": lambda scores: {**scores, "weight": 1e18},
}


@pytest.mark.parametrize("liar", ["c0", "c3"])
@pytest.mark.parametrize("kind", ODD_COLUMNS)
def test_scores_of_one_device_decide_no_column_of_the_record(kind, liar, tmp_path):
    """Parquet holds columns of one type, those of its first row: one device could end the run where it is recorded."""
    app, grid = make(tmp_path, rounds=2, settings=mo.Settings(evaluate_every=1))

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type != "evaluate" or grid.nodes[message.metadata.dst_node_id]["name"] != liar:
            return answer
        head = json.loads(str(answer.content.config_records["head"]["json"]))
        return reply(message, {**head, "scores": ODD_COLUMNS[kind](head["scores"])}, None)

    grid.deliver = deliver
    run = serve_here(app, grid)
    rows = mo.load(run.folder).clients
    assert [row["client"] for row in rows] == ["c0", "c1", "c2", "c3"]
    assert all(set(row) == set(rows[0]) and not set(row) & {"another", "weight"} for row in rows)
    assert all(0 <= row["metric"] <= 1 for row in run.history)


HELLOS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a row of 2^50 numbers": lambda head: {**head, "columns": {"x": ["float32", [2**30, 2**20]]}},
    "columns as nobody else has": lambda head: {**head, "columns": {"x": ["float32", [9]], "y": ["int64", []]}},
    "more rows than there are": lambda head: {**head, "sizes": [2**39, 2**39, 2**39]},
    "rows that are no number": lambda head: {**head, "sizes": [10**400, 0, 0]},
    "a name of digits": lambda head: {**head, "name": "9" * 5000},
    "half a letter": lambda head: {**head, "name": "\ud800"},
    "a name that clears the screen": lambda head: {**head, "name": "c9\x1b[2J"},
    "a name of two lines": lambda head: {**head, "name": "c9\nround 1 of 1: 4 of 4 answers used"},
    "classes beyond count": lambda head: {**head, "classes": 10**400},
    "no table": lambda head: {**head, "table": {"features": [["x", 1, 2]]}},
    "nothing": lambda head: {},
}


def test_of_what_a_device_says_when_it_joins_only_what_is_needed_is_kept(tmp_path):
    """The server writes it to its folder whenever somebody joins."""
    app, grid = make(tmp_path, rounds=1)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type != "query.hello":
            return answer
        head = json.loads(str(answer.content.config_records["head"]["json"]))
        return reply(message, {**head, "more": "x" * 100_000, "node": 3, "joined": True}, None)

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert run.history[-1]["rounds"] == 1
    assert (run.folder / "devices.json").stat().st_size < 5000


def test_what_a_device_says_is_shown_in_one_line_without_control_characters(tmp_path, caplog):
    """An operator reads it in a terminal, which a device could tell to hide or to fake lines."""
    app, grid = make(tmp_path, rounds=5, settings=mo.Settings(evaluate_every=1))
    evil = "\x1b[2J\x1b[1;31mround 9 of 9\r\n\u202eall is well" + "!" * 10_000
    kinds = itertools.cycle(("refused", "lost", "why"))

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        if not is_bad(grid, message):
            return call(message)
        kind = next(kinds)
        if kind == "why":
            return reply(message, {"round": int(message.metadata.group_id), "why": evil}, None)
        return Message(Error(REFUSED if kind == "refused" else 5, evil), reply_to=message)

    grid.deliver = deliver
    with caplog.at_level("INFO", logger="moiety"):
        run = serve_here(app, grid)
    reasons = [why for row in run.history for why in row.get("dropped_reasons", ())]
    assert len(reasons) >= 3
    texts = [*reasons, *(record.getMessage() for record in caplog.records)]
    assert all(text.isprintable() and len(text) <= 400 for text in texts)


@pytest.mark.parametrize("kind", HELLOS)
@pytest.mark.parametrize("liar", ["c0", "c3"])
def test_a_device_that_lies_when_it_joins_is_refused_and_the_others_train_as_without_it(kind, liar, tmp_path):
    """Also one whose name comes first. The others are clients 0 to 2, as where that device never was."""
    ends = []
    for folder, present in ((tmp_path / "lies", True), (tmp_path / "without", False)):
        app, grid = make(folder, clients=3, rounds=2, cohort=2)
        if not present:
            grid.nodes = {node: config for node, config in grid.nodes.items() if config["name"] != liar}

        def deliver(message: Message, call: Callable[[Message], Message], grid: LocalGrid = grid) -> Message:
            answer = call(message)
            mtype, name = message.metadata.message_type, grid.nodes[message.metadata.dst_node_id]["name"]
            if mtype != "query.hello" or name != liar:
                return answer
            head = json.loads(str(answer.content.config_records["head"]["json"]))
            return reply(message, HELLOS[kind](head), None)

        grid.deliver = deliver
        run = serve_here(app, grid)
        assert [str(name) for name in run._loop.problem.data.ids] == [f"c{i}" for i in range(4) if f"c{i}" != liar]
        ends.append(everything(run, folder))
    assert ends[0] == ends[1]


@pytest.mark.filterwarnings("ignore:`updates` must be finite:UserWarning")
def test_three_liars_one_after_the_other_do_not_end_the_run_of_eight_devices(tmp_path):
    """Each is alone in its round, in the first three rounds; five devices are honest."""
    data, model = federation((6,) * 8), small_model()
    app = make_app(model, data, mo.fedavg(shared=0.1), tmp_path, rounds=16, cohort=1, deadline=0.3)
    grid = LocalGrid(app, nodes_of(data, tmp_path))
    liars: set[str] = set()

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type != "train":
            return answer
        name = str(grid.nodes[message.metadata.dst_node_id]["name"])
        liars.update([name] if len(liars) < 3 else [])
        lie = LIES["numbers whose sum is infinite"]
        return reply(message, *lie(*parts(answer))) if name in liars else answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert run._loop.progress.round == 16
    drops = [bool(row["dropped"]) for row in run.history]
    assert drops[:3] == [True] * 3
    assert not all(drops)


def add_category(table: dict[str, Any], names: list[str]) -> None:
    table["categories"]["ward"].update(dict.fromkeys(names, 1))


def add_class(table: dict[str, Any], names: list[str]) -> None:
    table["classes"] += names


@pytest.mark.parametrize("add", [add_category, add_class])
@pytest.mark.parametrize("liars", [{"s0": 1}, {"s4": 3}, {"s0": 1, "s3": 2}])
def test_names_that_the_model_has_no_room_for_are_refused_with_their_device(add, liars, tmp_path, caplog):
    """Category ``c`` is on one honest device alone, and the model has room for it."""
    draw = np.random.default_rng(1)
    for k in range(5):
        ward, age = draw.choice(["a", "b"], 24), draw.normal(50, 10, 24)
        ward[0] = "c" if k == 1 else "a"
        lines = [f"{a:.1f},{w},{'ill' if a > 50 else 'well'}" for a, w in zip(age, ward, strict=True)]
        (tmp_path / f"s{k}.csv").write_text("\n".join(["age,ward,outcome", *lines]) + "\n")
    ends = []
    for folder, present in ((tmp_path / "lies", True), (tmp_path / "without", False)):
        app = mo.deploy.app(
            mo.models.mlp(4, 2, hidden=(5,), seed=3),
            mo.fedavg(shared=0.1),
            rounds=2,
            data=mo.deploy.table(target="outcome"),
            clients=5 - len(liars),
            out=folder / "server",
            deadline=5.0,
        )
        nodes = {
            40 - k: {"name": f"s{k}", "folder": str(folder / f"d{k}"), "data": str(tmp_path / f"s{k}.csv")}
            for k in range(5)
            if present or f"s{k}" not in liars
        }
        grid = LocalGrid(app, nodes)

        def deliver(message: Message, call: Callable[[Message], Message], grid: LocalGrid = grid) -> Message:
            answer = call(message)
            name = grid.nodes[message.metadata.dst_node_id]["name"]
            if message.metadata.message_type != "query.hello" or name not in liars:
                return answer
            head = json.loads(str(answer.content.config_records["head"]["json"]))
            add(head["table"], [f"{name} {i}" for i in range(liars[name])])
            return reply(message, head, None)

        grid.deliver = deliver
        run = serve_here(app, grid)
        assert [str(name) for name in run._loop.problem.data.ids] == [f"s{k}" for k in range(5) if f"s{k}" not in liars]
        ends.append(exact(run._loop.progress.server))
    assert ends[0] == ends[1]
    assert caplog.text.count("it alone has some categories or classes") == len(liars)
