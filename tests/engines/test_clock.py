"""Rounds on a virtual clock, against numbers derived by hand."""

import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tomli_w
import torch
from engine_cases import federation, mlp, refused, same_runs
from oracle_problems import federated, scalar_task, split_of
from run_settings import with_settings

import moiety as mo
from moiety.clients.clock import clock_from
from moiety.loop.virtual_time import draw_idle
from moiety.transport.guard import PrivacyError
from moiety.types import Delay

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
SHARED = split_of(["u", "v"])


def pulls(*targets, rows=1):
    """f_m = (u - y_m)^2 / 2, by itself for v."""
    return federated([{"a": np.ones(rows), "b": np.zeros(rows), "y": np.full(rows, float(y))} for y in targets])


def follow_run(fed, algorithm, clock, rounds, **options):
    """The run, u after every round and the records."""
    records, values = [], []

    def server_update(server, change, share):
        after = algorithm.server_update(server, change, share)
        values.append(float(after.shared["u"]))
        return after

    method = replace(algorithm, server_update=server_update)
    arguments = {"split": SHARED, "engine": "sequential", "evaluate_every": rounds, "clock": clock} | options
    task = arguments.pop("task", scalar_task(u=0.0))
    run = mo.fit(
        task, fed, method, **with_settings(rounds=rounds, callbacks=[lambda run, r: records.append(r)], **arguments)
    )
    return run, values, records


def step(lr=0.5):
    return mo.fedavg(shared=mo.sgd(lr, steps=1, batch_size=9), weighting="uniform")


@ENGINES
def test_constant_times_by_hand(engine):
    """Clients of 2, 3 and 7 seconds, all active, so that whoever arrives begins anew; targets 8, -8, 16, u = 0.

    A client that begins at u sends (y - u) / 2.

    time  who  sends  staleness                      u     begins anew with
    2     0    4      0                              4     (8 - 4) / 2 = 2, due at 4
    3     1    -4     1 (one step since it began)    0     -4, due at 6
    4     0    2      1                              2     3, due at 6
    6     1    -4     1 (began before the next one)  -2    -3, due at 9
    6     0    3      1                              1     3.5, due at 8
    7     2    8      5                              9     3.5, due at 14
    8     0    3.5    1                              12.5  -2.25, due at 10
    9     1    -3     3                              9.5

    Ten clients have begun by the last arrival: three at first, and one after every arrival but the last.
    """
    clock = mo.clock.asynchronous(active=3, compute=mo.clock.constant([1, 2, 4]), up=mo.clock.constant([1, 1, 3]))
    run, values, records = follow_run(pulls(8, -8, 16), step(), clock, 8, engine=engine)
    assert [r.time for r in records] == [2, 3, 4, 6, 6, 7, 8, 9]
    assert [r.cohort for r in records] == [(0,), (1,), (0,), (1,), (0,), (2,), (0,), (1,)]
    assert [r.staleness for r in records] == [(0,), (1,), (1,), (1,), (1,), (5,), (1,), (3,)]
    assert values == [4, 0, 2, -2, 1, 9, 12.5, 9.5]
    row = run.history[-1]
    assert (row["time"], row["staleness"], row["staleness_max"], row["under_way"]) == (9, 13 / 8, 5, 2)
    # Two float64 numbers go down to each of ten, and come up eight times.
    assert (run.ledger["client_updates"], run.ledger["down_values"], run.ledger["up_values"]) == (10, 160, 128)


@ENGINES
def test_delays_by_hand(engine):
    """Two clients, targets 8 and -8; broadcasts to the first and uploads of the second take a round.

    t  first works with  sends  second works with  sends  arrive        mean  version t + 1
    0  version 0 = 0     4      version 0 = 0      -4     4             4     4
    1  version 0 = 0     4      version 1 = 4      -6     -4, 4         0     4
    2  version 1 = 4     2      version 2 = 4      -6     -6, 2         -2    2
    3  version 2 = 4     2      version 3 = 2      -5     -6, 2         -2    0

    The last upload of the second is under way when the run ends.
    """
    clock = mo.clock.delayed(down=[1, 0], up=[0, 1])
    run, values, records = follow_run(pulls(8, -8), step(), clock, 4, engine=engine)
    assert values == [4, 4, 2, 0]
    assert [r.cohort for r in records] == [(0,), (1, 0), (1, 0), (1, 0)]
    assert [r.staleness for r in records] == [(0,), (1, 1), (1, 1), (1, 1)]
    assert run.history[-1]["under_way"] == 1
    assert (run.ledger["client_updates"], run.ledger["up_values"]) == (8, 7 * 16)


def test_a_round_in_which_nothing_arrives_leaves_the_server_as_it_is():
    """Uploads take two rounds: the server stands still in rounds 0 and 1; then 4 of round 0, at u = 0, arrives."""
    run, values, records = follow_run(pulls(8), step(), mo.clock.delayed(up=2), 3)
    assert values == [4]
    assert [r.cohort for r in records] == [(), (), (0,)]
    assert run.ledger["rounds"] == 3


@ENGINES
@pytest.mark.parametrize("at", ["dispatch", "arrival"])
def test_states_move_when_clients_work_and_uploads_may_be_computed_on_arrival(engine, at):
    """One client, f = (u + v - 8)^2 / 2 from 0, FedSim with rates 1/2 and 1/4, each way takes a round. g = u + v - 8.

    The client:
    t  works with    v before  g       v after
    0  version 0: 0  0         -8      2
    1  version 0: 0  2         -6      3.5
    2  version 1: 0  3.5       -4.5    4.625

    On dispatch, the uploads of rounds 0 and 1 are 4 and 3: u is 0, 0, 4, 7 at the start of rounds 0 to 3, and in round
    3 the client works with version 2: g = 4 + 4.625 - 8 = 0.625, v = 4.46875, and 2.25 of round 2 arrives: u = 9.25.

    On arrival: in round 1 with version 1 and the v before round 0: g = 0 + 0 - 8, u = 4; in round 2 with version 2 and
    the v before round 1: g = 4 + 2 - 8 = -2, u = 5; in round 3, with the v before round 2: g = 5 + 3.5 - 8 = 0.5, u =
    4.75. The client's own course is the same, since version 2 is 4 in both.
    """
    fed = federated([{"a": np.ones(1), "b": np.ones(1), "y": np.full(1, 8.0)}])
    algorithm = mo.fedsim(shared=mo.sgd(0.5, steps=1), personal=0.25)
    clock = mo.clock.delayed(down=1, up=1, at=at)
    run, values, _ = follow_run(fed, algorithm, clock, 4, engine=engine, split=split_of(["u"], ["v"]))
    assert values == {"dispatch": [4, 7, 9.25], "arrival": [4, 5, 4.75]}[at]
    assert float(run.parameters(0)["v"]) == 4.46875
    # The work that is done twice is counted twice.
    plain = follow_run(fed, algorithm, None, 4, split=split_of(["u"], ["v"]))[0].ledger["flops"]
    assert run.ledger["flops"] == (plain if at == "dispatch" else plain / 4 * 7)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:sequential"])
def test_a_client_is_told_its_round_trip(engine):
    """Its state becomes down + up, and stays 0 where no clock delays anything."""
    base = mo.fedsim(shared=mo.sgd(0.5, steps=1), personal=0.25)

    def client_update(work, received, state):
        update, _ = base.client_update(work, received, state)
        return update, state._replace(personal={"v": work.round_trip.to(torch.float64)})

    algorithm = replace(base, client_update=client_update)
    for clock, trips in (
        (mo.clock.delayed(down=[0, 1, 2], up=[3, 0, 5]), [3, 1, 7]),
        (mo.clock.delayed(down=2, up=[1, 0, 0]), [3, 2, 2]),
        (None, [0, 0, 0]),
    ):
        run = mo.fit(
            scalar_task(),
            pulls(1, 2, 3),
            algorithm,
            split=split_of(["u"], ["v"]),
            rounds=1,
            engine=engine,
            settings=mo.Settings(clock=clock),
        )
        assert [float(run.parameters(c)["v"]) for c in range(3)] == trips


FED = federation()


def fit_personalised(clock, engine="sequential", **options):
    model = mlp()
    algorithm = mo.fedalt(
        shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5), server=mo.server.adam(lr=0.05)
    )
    options = {"rounds": 6, "seed": 3, "evaluate_every": 2} | options
    split = mo.split.output_layer(model)
    return mo.fit(model, FED, algorithm, **with_settings(split=split, engine=engine, clock=clock, **options))


def without_clock(run):
    """The run with the columns of a clock left out of its history."""
    extra = ("time", "staleness", "staleness_max", "under_way")
    return replace(run, history=[{k: v for k, v in row.items() if k not in extra} for row in run.history])


@pytest.mark.parametrize(
    ("clock", "cohort"),
    [
        (mo.clock.asynchronous(active=1, compute=mo.clock.exponential(1.0)), 1),
        (mo.clock.delayed(), 3),
        (mo.clock.delayed(at="arrival"), None),
        (mo.clock.synchronous(compute=mo.clock.exponential(1.0)), 3),
    ],
    ids=["one active", "no delay", "no delay, on arrival", "synchronous"],
)
def test_what_equals_rounds_without_a_clock(clock, cohort):
    """One active client is one sampled client a round, and no delay is no delay: bit for bit, but for FLOPs twice."""
    run, plain = fit_personalised(clock, cohort=cohort), fit_personalised(None, cohort=cohort)
    if getattr(clock, "at", "") == "arrival":
        for rows in ([run.ledger, *run.history], [plain.ledger, *plain.history]):
            for row in rows:
                row["flops"] = 0
    same_runs(without_clock(run), plain)


def test_synchronous_rounds_take_as_long_as_the_slowest_of_the_cohort():
    """Constant times: client c takes 2^c seconds, so a round takes 2^(its largest client)."""
    records = []
    clock = mo.clock.synchronous(compute=mo.clock.constant([1, 2, 4, 8, 16, 32]))
    run = fit_personalised(clock, cohort=2, callbacks=[lambda run, r: records.append(r)])
    ends = np.cumsum([2.0 ** max(r.cohort) for r in records])
    assert [r.time for r in records] == ends.tolist()
    assert [row["time"] for row in run.history] == ends[1::2].tolist()


@pytest.mark.parametrize(
    "clock",
    [
        mo.clock.asynchronous(active=3, compute=mo.clock.pareto(0.1, shape=1.2, spread=1.0), up=0.2),
        mo.clock.delayed(down=[0, 1, 2, 0, 1, 2], up=1),
        mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 2], at="arrival"),
    ],
    ids=["asynchronous", "delayed", "on arrival"],
)
def test_a_run_replays_exactly_and_engines_agree(clock):
    first = fit_personalised(clock, rounds=10)
    same_runs(first, fit_personalised(clock, rounds=10))
    for engine in ("vectorised", "processes:sequential"):
        other = fit_personalised(clock, engine, rounds=10)
        assert [row.get("time") for row in other.history] == [row.get("time") for row in first.history]
        for name, value in first.shared_parameters().items():
            torch.testing.assert_close(other.shared_parameters()[name], value, rtol=0, atol=1e-5)
    again = fit_personalised(clock, rounds=10, seed=4)
    assert [row["loss"] for row in again.history] != [row["loss"] for row in first.history]


def test_at_most_so_many_are_active_and_none_twice():
    """From the records: between two arrivals of a client it began anew, with at most two others at work."""
    records = []
    clock = mo.clock.asynchronous(active=3, compute=mo.clock.exponential([1, 1, 1, 1, 1, 9]))
    run = fit_personalised(clock, rounds=40, callbacks=[lambda run, r: records.append(r)])
    assert run.ledger["client_updates"] == 42
    assert run.history[-1]["under_way"] == 2
    times = [r.time for r in records]
    assert times == sorted(times)
    # An update that began with version v arrives as number v + staleness + 1; only three begin with version 0.
    versions = [r.round - 1 - r.staleness[0] for r in records]
    assert versions.count(0) <= 3
    assert len({b for b in versions if b}) == len([b for b in versions if b])


def test_the_next_client_is_drawn_uniformly_from_those_not_active():
    counts = np.zeros(6)
    for t in range(3000):
        counts[draw_idle(6, {1, 4}, 1, seed=0, round=t)] += 1
    assert counts[[1, 4]].sum() == 0
    # Four standard deviations of a binomial of 3000 and a quarter are 95.
    assert np.abs(counts[[0, 2, 3, 5]] - 750).max() < 95
    assert draw_idle(4, {0, 1, 2}, 1, seed=0, round=9) == [3]


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_an_update_that_is_not_finite_is_dropped_and_the_server_makes_no_step():
    """Clients of 1, 2 and 3 rows and seconds, all active; the second sends NaN.

    Arrivals: 0 at 1; 1 and then 0 at 2 (the second began first); 0 at 3 after 2 (which began first). The second's makes
    no step, so that the first client's of time 2, which began after one step, has missed none.
    """
    base = step()

    def client_update(work, received, state):
        update, state = base.client_update(work, received, state)
        bad = torch.where(work.examples == 2, torch.nan, 0.0)
        return update._replace(upload={n: x + bad for n, x in update.upload.items()}), state

    rows = [{"a": np.ones(n), "b": np.zeros(n), "y": np.full(n, 8.0)} for n in (1, 2, 3)]
    clock = mo.clock.asynchronous(active=3, compute=mo.clock.constant([1, 2, 3]))
    algorithm = replace(base, client_update=client_update)
    run, values, records = follow_run(federated(rows), algorithm, clock, 4)
    assert [r.cohort for r in records] == [(0,), (1,), (0,), (2,)]
    assert [r.dropped for r in records] == [(), ("client-1",), (), ()]
    assert [r.staleness for r in records] == [(0,), (1,), (0,), (2,)]
    assert values == [4, 6, 10]
    assert run.history[-1]["dropped"] == ["2:client-1"]
    assert run.ledger["up_values"] == 4 * 16  # what was dropped was sent


@pytest.mark.parametrize("clock", [mo.clock.asynchronous(active=2), mo.clock.delayed(up=1)])
def test_the_guard_looks_before_anything_is_under_way(clock):
    base = mo.fedsim(shared=mo.sgd(0.5, steps=1), personal=0.25)

    def client_update(work, received, state):
        update, state = base.client_update(work, received, state)
        return update._replace(upload={**update.upload, **state.personal}), state

    leaky = replace(base, client_update=client_update)
    with pytest.raises(PrivacyError, match="got v too"):
        follow_run(pulls(1, 2), leaky, clock, 1, split=split_of(["u"], ["v"]))


@pytest.mark.parametrize(
    "clock", [mo.clock.asynchronous(active=2, compute=mo.clock.constant([1, 2])), mo.clock.delayed(up=[0, 1])]
)
def test_the_guard_looks_at_an_upload_that_never_arrives(clock):
    """The second client, which has 2 rows, sends its v; the run ends with round 1, when only the first has arrived."""
    base = mo.fedsim(shared=mo.sgd(0.5, steps=1), personal=0.25)
    fed = federated([{"a": np.ones(n), "b": np.zeros(n), "y": np.ones(n)} for n in (1, 2)])

    def client_update(work, received, state):
        update, state = base.client_update(work, received, state)
        leak = state.personal if float(work.examples) == 2 else {}
        return update._replace(upload={**update.upload, **leak}), state

    with pytest.raises(PrivacyError, match="got v too \\(client client-1, round 1\\)"):
        follow_run(fed, replace(base, client_update=client_update), clock, 1, split=split_of(["u"], ["v"]))
    _, values, records = follow_run(fed, base, clock, 1, split=split_of(["u"], ["v"]))
    assert [r.cohort for r in records] == [(0,)]
    assert len(values) == 1


def test_attacks_of_a_client_of_its_own_work_on_arrivals():
    """Sign flip by the second of two: it sends 4 in the place of -4. The first is at 2 s, then the second at 3 s."""
    clock = mo.clock.asynchronous(active=2, compute=mo.clock.constant([2, 3]))
    attack = {"attack": mo.attack.sign_flip(), "attackers": [1]}
    assert follow_run(pulls(8, -8), step(), clock, 2, **attack)[1] == [4, 8]


def test_times():
    """Against the distributions' own formulas, with 4,000 draws each."""

    def draw_times(times, count=4000):
        return np.array(
            [times.of(5, "compute", client, "", turn) for client in range(20) for turn in range(count // 20)]
        )

    exponential = draw_times(mo.clock.exponential(2.0))
    assert exponential.mean() == pytest.approx(2.0, rel=0.05)
    assert (exponential > 4.0).mean() == pytest.approx(np.exp(-2.0), abs=0.02)
    pareto = draw_times(mo.clock.pareto(0.5, shape=1.5))
    assert pareto.min() >= 0.5
    for seconds in (1.0, 4.0):
        assert (pareto > seconds).mean() == pytest.approx((0.5 / seconds) ** 1.5, abs=0.02)
    assert set(draw_times(mo.clock.constant(3.0))) == {3.0}
    spread = mo.clock.constant(3.0, spread=0.7)
    factors = np.log([spread.of(5, "up", client, "", 0) / 3 for client in range(2000)])
    assert factors.mean() == pytest.approx(0.0, abs=0.05)
    assert factors.std() == pytest.approx(0.7, abs=0.04)
    assert spread.of(5, "up", 7, "", 0) == spread.of(5, "up", 7, "", 99)
    assert mo.clock.exponential([1.0, 100.0]).of(5, "up", 1, "", 0) > 0


@ENGINES
def test_lost_uploads_by_hand(engine, tmp_path):
    """Clients of 2 and 3 seconds, both active, targets 8 and -8; the first upload of client 1 is lost.

    time  who  sends  staleness  u   begins anew with
    2     0    4      0          4   2, due at 4
    3     1    lost              4   -6, due at 6
    4     0    2      0          6   1, due at 6
    6     1    -6     1          0   -4, due at 9
    6     0    1      1          1
    """
    file = tmp_path / "times.csv"
    file.write_text("client,seconds,lost\nclient-0,2,0\nclient-1,3,1\nclient-1,3,0\nclient-1,3,0\n")
    clock = mo.clock.asynchronous(active=2, compute=mo.clock.trace(str(file), lost="lost"))
    run, values, records = follow_run(pulls(8, -8), step(), clock, 5, engine=engine)
    assert values == [4, 6, 0, 1]
    assert [record.dropped for record in records] == [(), ("client-1",), (), (), ()]
    assert [record.reasons for record in records][1] == ("lost on its way",)
    assert [record.time for record in records] == [2, 3, 4, 6, 6]
    assert [row["staleness"] for row in run.history] == [0.5]
    refused(lambda: mo.clock.synchronous(up=mo.clock.trace(str(file), lost="lost")), "without lost uploads")
    refused(lambda: mo.clock.trace(str(file), lost="seconds"), "0 or 1 as seconds")
    refused(lambda: mo.clock.trace(str(file), lost="gone"), "a column gone")


def test_a_trace(tmp_path):
    """Lines of a client in turn, then from the first again: 0 takes 1 + 2, 3 + 2, 1 + 2, ...; 1 takes 4 + 1."""
    file = tmp_path / "times.csv"
    file.write_text("client,compute,up\nclient-0,1,2\nclient-1,4,1\nclient-0,3,2\n")
    times = {what: mo.clock.trace(str(file), column=what) for what in ("compute", "up")}
    _, _, records = follow_run(pulls(8, -8), step(), mo.clock.asynchronous(active=2, **times), 5)
    assert [(r.cohort[0], r.time) for r in records] == [(0, 3), (1, 5), (0, 8), (1, 10), (0, 11)]


def test_bad_input_gets_one_clear_line(tmp_path):
    clock, fit = mo.clock, partial(follow_run, pulls(8, -8), step())
    refused(lambda: fit(4, 1), "clock.*what moiety.clock makes.*asynchronous")
    refused(lambda: clock.asynchronous(active=0), "clock.active.*>= 1")
    refused(lambda: fit(clock.asynchronous(active=3), 1), "clock.active.*<= 2.*got 3")
    refused(lambda: fit(clock.asynchronous(active=1), 1, cohort=2), "cohort.*left out.*active")
    refused(lambda: clock.asynchronous(active=1, compute=-1.0), "clock.compute.*>= 0")
    refused(lambda: clock.asynchronous(active=1, compute="fast"), "clock.compute.*'fast'")
    refused(lambda: clock.exponential(0.0), "mean.*> 0")
    refused(lambda: clock.pareto(1.0, shape=0.0), "shape.*> 0")
    refused(lambda: clock.constant([1.0, float("nan")]), "seconds.*nan")
    refused(lambda: clock.constant([]), "seconds.*each client")
    refused(lambda: clock.constant(1.0, spread=-1.0), "spread.*>= 0")
    refused(lambda: clock.constant(1.0, spread=1e4), "spread.*at most 50")  # exp of it is no float
    refused(lambda: clock.exponential(np.ones(2)), "mean.*list of such numbers")  # no file could hold it
    refused(lambda: fit(clock.synchronous(compute=clock.constant([1.0] * 3)), 1), "clock.compute.*2 clients.*got 3")
    refused(lambda: clock.delayed(down=-1), "clock.down.*>= 0")
    refused(lambda: clock.delayed(up=1.5), "clock.up.*whole")
    refused(lambda: clock.delayed(at="once"), "clock.at.*'once'")
    refused(lambda: fit(clock.delayed(down=[1, 2, 3]), 1), "clock.down.*each of 2 clients")
    for rule in (mo.aggregator.median(), mo.aggregator.mean()):
        refused(lambda rule=rule: fit(clock.asynchronous(active=2), 1, aggregator=rule), "aggregator.*one by one")
    ally = {"attack": mo.attack.mimic(), "attackers": [0]}
    refused(lambda: fit(clock.asynchronous(active=2), 1, **ally), "attack.*mimic")
    narrow = replace(step(), delay=Delay(longest_round_trip=2, evaluates_at="dispatch"))
    refused(lambda: follow_run(pulls(8), narrow, clock.delayed(down=1, up=2), 1), "clock.*at most 2.*got 3")
    late = replace(step(), delay=Delay(longest_round_trip=None, evaluates_at="arrival"))
    refused(lambda: follow_run(pulls(8), late, clock.delayed(down=1), 1), "clock.at.*arrival.*dispatch")
    file = tmp_path / "times.csv"
    refused(lambda: clock.trace(str(file)), "file.*times.csv")
    for text, pattern in (
        ("", "file.*none"),
        ("client,second\na,1\n", "column seconds.*Known|second"),
        ("client,seconds\na,-1\n", "line 2"),
        ("client,seconds\na,1\nb\n", "line 3"),
    ):
        file.write_text(text)
        refused(lambda: clock.trace(str(file)), pattern)
    file.write_text("client,seconds\nclient-0,1\n")
    refused(lambda: fit(clock.synchronous(up=clock.trace(str(file))), 1), "clock.up.*client-1")


@pytest.mark.parametrize(
    "clock",
    [
        mo.clock.asynchronous(active=4, compute=mo.clock.pareto([1.0, 2.0], shape=1.5, spread=0.5), up=0.5),
        mo.clock.synchronous(down=mo.clock.exponential(2.0)),
        mo.clock.delayed(down=[0, 3], up=1, at="arrival"),
    ],
    ids=["asynchronous", "synchronous", "delayed"],
)
def test_a_clock_is_written_to_a_file_and_made_again(clock):
    again = clock_from(tomllib.loads(tomli_w.dumps(clock.spec)))
    assert again.spec == clock.spec
    if hasattr(clock, "travel"):
        assert again.travel.seconds(3, 1, "", 5) == clock.travel.seconds(3, 1, "", 5)
    else:
        assert (again.down, again.up, again.at) == (clock.down, clock.up, clock.at)
