"""Faults of real processes: none loses a personal state, none stops the federation while enough nodes live.

After each, server and devices must be, to the bit, what a simulation of those who took part gives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
import site_app
from harness import (
    LONG,
    NODES,
    Trial,
    check_equals_simulation,
    is_gone,
    kill_server_process,
    rounds_of,
    server_processes,
    write_app,
)
from night import NIGHTLY
from proxy import Proxy
from site_app import LIES

from moiety.clients.cohorts import uniform_cohort
from moiety.deploy.commands import Link, node_command, train_command
from moiety.deploy.keys import make_keys
from moiety.deploy.local import EXECUTOR, LINK
from moiety.deploy.processes import free_ports, wait_until
from moiety.deploy.roster import load_roster
from moiety.run.folder import read_history, read_id

LAST, PARTED = NODES[3], NODES[2]
LEAST = 2


def patient(**options: object) -> dict[str, object]:
    """Options of a run in which devices may be away."""
    return {"algorithm": "fedalt", "deadline": 15.0, "least": LEAST, **options}


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with Trial(tmp_path_factory.mktemp("faults") / "trial") as running, Proxy(running.link.port) as proxy:
        running.start(proxy, by_proxy=[PARTED])
        yield running


ENDLESS = 100_000
"""Rounds of a run that a test ends when it has seen what it waits for."""


def kill_server(trial):
    """Kill the server's process; devices notice nothing."""
    kill_server_process(trial)
    trial.processes.stop("run")


def end_run(trial, out, more=2):
    """Let the run of a killed server go on for some rounds, and end; how many rounds it has then."""
    rounds = rounds_of(out) + more
    trial.begin(trial.folder / "apps" / out.name, {"rounds": rounds})
    trial.finish(out)
    return rounds


def test_a_bad_day(trial):
    """In one run: a node is killed between storing and sending, SuperLink and server are killed, a line is cut."""
    trial.hold(LAST, "after-storing")
    out = trial.submit("bad-day", **patient(rounds=ENDLESS))
    trial.wait_held(LAST, "after-storing")
    trial.kill_node(LAST)
    trial.let_go(LAST, "after-storing")
    trial.wait_round(out, 2)

    trial.processes.kill("link")  # the database keeps what is on its way
    trial.start_link()
    trial.wait_round(out, rounds_of(out) + 2)

    trial.proxy.cut()
    trial.wait_part(out, PARTED, taken=False)
    trial.proxy.mend()
    trial.wait_part(out, PARTED)

    kill_server(trial)
    trial.bring_back(LAST)
    trial.begin(trial.folder / "apps" / "bad-day")  # the same command again
    trial.wait_part(out, LAST)
    kill_server(trial)
    rounds = end_run(trial, out)
    cohorts = check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)
    assert len(cohorts) == rounds
    assert len([cohort for cohort in cohorts if cohort]) >= rounds // 2


LOCKED = 12.0
"""Seconds for which another process locks the SuperLink's database: its own calls wait for five."""


def test_a_database_that_is_locked_stops_nobody(trial):
    """Every call that writes is answered with 500 meanwhile: executor, server and nodes live on, and no run is lost."""
    out = trial.submit("locked", **patient(rounds=6, deadline=LONG))
    trial.wait_round(out, 1)
    before = {name: len(trial.processes.log(name)) for name in (EXECUTOR, LINK)}
    (server,) = server_processes(trial)
    database = sqlite3.connect(trial.folder / "superlink.db", isolation_level=None, timeout=60.0)
    database.execute("BEGIN IMMEDIATE")
    time.sleep(LOCKED)
    database.execute("ROLLBACK")
    database.close()
    trial.finish(out)
    assert "database is locked" in trial.processes.log(LINK)[before[LINK] :]
    assert "the executor begins again" in trial.processes.log(EXECUTOR)[before[EXECUTOR] :]
    assert is_gone(server)
    assert not trial.processes.has_ended(EXECUTOR)
    cohorts = check_equals_simulation(out, trial.folder, "fedalt", 6, LEAST)
    assert [len(cohort) for cohort in cohorts] == [3] * 6, "no answer was lost"


def test_an_executor_that_is_killed_ends_no_federation(trial):
    """The server's process ends with it. Something starts the executor again, and ``moiety deploy run`` the run."""
    out = trial.folder / "restarted"
    app = write_app(trial.folder / "apps" / out.name, {"algorithm": "fedalt", **patient(rounds=8), "out": str(out)})
    command = [sys.executable, "-m", "moiety", *train_command(app)[1:]]
    trial.processes.start("run", command, trial.home("server"))
    trial.wait_round(out, 2)
    trial.processes.running[EXECUTOR].send_signal(signal.SIGKILL)  # it alone, not its group
    wait_until(lambda: trial.processes.has_ended(EXECUTOR), LONG, "the end of the executor")
    trial.processes.running.pop(EXECUTOR)
    trial.start_executor()
    assert trial.processes.wait("run", LONG) == 0
    text = trial.processes.log("run")
    assert "it goes on with a new attempt" in text
    assert "has all 8 rounds" in text
    check_equals_simulation(out, trial.folder, "fedalt", 8, LEAST)


@pytest.mark.skipif(not NIGHTLY, reason="more than a minute: so long Flower waits for a sign of life")
def test_a_node_that_was_cut_off_for_more_than_a_minute_takes_part_again(trial):
    """The SuperLink takes it for gone; its own process must not end."""
    out = trial.submit("parted", **patient(rounds=ENDLESS))
    trial.wait_round(out, 1)
    trial.proxy.cut()
    time.sleep(75)
    trial.wait_part(out, PARTED, taken=False)
    trial.proxy.mend()
    trial.wait_part(out, PARTED)
    kill_server(trial)
    rounds = end_run(trial, out)
    check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)


def test_strangers_are_refused_and_nobody_notices(trial, tmp_path):
    """A node that trusts another authority, and one whose key nobody registered."""
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["stranger"])
    (port,) = free_ports(1)
    wrong = Link(trial.link.address, trial.link.port, tmp_path / "keys")
    config = {"name": "stranger", "folder": str(tmp_path / "device")}
    trial.processes.start("wrong-authority", node_command(wrong, "stranger", config, port), trial.home("stranger"))
    unknown = tmp_path / "unknown"
    make_keys(unknown, ["127.0.0.1"], ["stranger"])
    shutil.copy(trial.link.keys / "server" / "ca.crt", unknown / "stranger" / "ca.crt")
    link = Link(trial.link.address, trial.link.port, unknown)
    (port,) = free_ports(1)
    trial.processes.start("unregistered", node_command(link, "stranger", config, port), trial.home("stranger"))
    out = trial.submit("strangers", **patient(rounds=3))
    for name in ("wrong-authority", "unregistered"):
        assert trial.processes.wait(name, LONG) != 0
    trial.finish(out)
    check_equals_simulation(out, trial.folder, "fedalt", 3, LEAST)
    assert not (tmp_path / "device").exists()


def test_a_node_that_lies_is_left_out_and_the_others_go_on(trial):
    """It sends rubbish, an old round, its first answer again, NaN, and 300 MB (at night 10^9 bytes).

    Then it sends the truth, which counts.
    """
    rounds, client = 7, NODES.index(LAST)
    turns = [t for t in range(rounds) if client in uniform_cohort(len(NODES), 3, seed=5, round=t)]
    assert len(turns) == len(LIES) + 1
    trial.hold(LAST, "lie")
    out = trial.submit("liar", **patient(rounds=rounds, deadline=LONG))  # nobody is away
    trial.finish(out)
    cohorts = check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)
    assert [t for t, cohort in enumerate(cohorts) if client in cohort] == turns[-1:]
    assert [len(cohort) for cohort in cohorts] == [2, 2, 2, 2, 3, 2, 3]
    why = [reason for row in read_history(out) for reason in row.get("dropped_reasons", ())]
    words = ["safetensors", "`round` must be 1", "`round` must be 2", "not finite", "`message` must be of at most"]
    assert len(why) == len(words)
    assert all(word in reason for word, reason in zip(words, why, strict=True)), why


@pytest.mark.skipif(not NIGHTLY, reason="a minute each: Flower lets a killed node back in after that")
@pytest.mark.parametrize(
    "phase", ["idle", "joining", "before-storing", "after-storing", "pushing", "evaluating", "ending"]
)
def test_a_node_that_is_killed_in_any_phase_comes_back(phase, trial):
    rounds = 8 if phase == "ending" else ENDLESS
    if phase != "idle":
        trial.hold(LAST, phase)
    share = "per_client" if phase == "evaluating" else "none"
    out = trial.submit(f"killed-{phase}", **patient(rounds=rounds, share_metrics=share))
    if phase == "idle":
        trial.wait_round(out, 1)
    else:
        trial.wait_held(LAST, phase)
    trial.kill_node(LAST)
    trial.let_go(LAST, phase)
    trial.bring_back(LAST)
    if phase == "ending":
        trial.finish(out)
    else:
        trial.wait_part(out, LAST)
        kill_server(trial)
        rounds = end_run(trial, out)
    check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)
    # Whatever it was killed in, it has a model and predicts without the server.
    device = site_app.make_app("fedalt").device({"name": LAST, "folder": str(trial.folder / "devices" / LAST)})
    data = site_app.make_data()
    assert device.own_run(read_id(out)).predict(LAST, data.columns["x"][:5]).shape == (5,)


@pytest.mark.skipif(not NIGHTLY, reason="a clock that is behind is in the gate, without Flower's own checks")
def test_a_clock_that_is_behind_by_a_minute_changes_nothing(trial, tmp_path):
    """Flower itself refuses nodes that are more than 5 s ahead or 305 s behind: that is in the docs."""
    (tmp_path / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() - 60\n")
    parts = (LAST, f"{LAST}-worker")
    trial.processes.stop(*parts)
    before = dict(trial.environment)
    trial.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    try:
        trial.start_site(LAST)
    finally:
        trial.environment = before
    out = trial.submit("skewed", **patient(rounds=4, deadline=LONG))
    trial.finish(out)
    trial.processes.stop(*parts)
    cohorts = check_equals_simulation(out, trial.folder, "fedalt", 4, LEAST)
    assert any(3 in cohort for cohort in cohorts)


@pytest.mark.skipif(not NIGHTLY, reason="more than a minute: so long Flower waits for a sign of life")
@pytest.mark.parametrize("how", ["slept", "killed"])
def test_a_worker_that_slept_or_was_killed_takes_part_again(how, trial):
    """As on a laptop that was shut: Flower gives the task up, and the worker finds out when it wakes.

    Where it was killed alone, its node waits, answers in its place, and gives the next message to a new worker.
    """
    name = f"{LAST}-worker"
    worker = trial.processes.running[name]
    trial.hold(LAST, "before-storing")
    out = trial.submit(how, **patient(rounds=ENDLESS))
    trial.wait_held(LAST, "before-storing")
    before = len(trial.processes.log(LAST))
    if how == "slept":
        worker.send_signal(signal.SIGSTOP)
    else:
        trial.processes.kill(name)
    trial.let_go(LAST, "before-storing")
    try:
        # The node answers in the place of its worker, which cannot have done it.
        wait_until(lambda: "Sending: train" in trial.processes.log(LAST)[before:], LONG, "a task that is given up")
    finally:
        worker.send_signal(signal.SIGCONT)
    if how == "killed":
        trial.start_worker(LAST)
    trial.wait_part(out, LAST)
    assert (worker.poll() is None) == (how == "slept")
    kill_server(trial)
    rounds = end_run(trial, out)
    check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)


@pytest.mark.skipif(not NIGHTLY, reason="a minute: Flower lets a killed node back in after that")
def test_a_node_that_comes_during_the_run_is_onboarded(trial):
    """Three devices begin, all are asked in every round; the fourth joins, and trains as any client from then on."""
    trial.kill_node(LAST)
    out = trial.submit("newcomer", **patient(rounds=ENDLESS, clients=3, cohort=None, deadline=LONG))
    trial.wait_round(out, 2)
    before = len(load_roster(out, read_id(out)).members)
    trial.bring_back(LAST)
    wait_until(lambda: len(load_roster(out, read_id(out)).members) == 4, LONG, "a fourth device")
    trial.wait_round(out, rounds_of(out) + 3)
    kill_server(trial)
    rounds = end_run(trial, out)
    assert before == 3
    assert [member.name for member in load_roster(out, read_id(out)).members] == NODES
    rows = {row["round"]: row for row in read_history(out)}
    answers = [
        rows[t]["client_updates"] - (rows[t - 1]["client_updates"] if t > 1 else 0) for t in range(1, rounds + 1)
    ]
    absent = {place for row in rows.values() for place in row["dropped"]}
    cohorts = [[0, 1, 2, 3][: count if f"{t}:{LAST}" not in absent else 3] for t, count in enumerate(answers, 1)]
    assert {place.partition(":")[2] for place in absent} <= {LAST}
    assert sorted(map(len, cohorts)) == list(map(len, cohorts))
    assert len(cohorts[0]) == 3 < len(cohorts[-1])
    check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST, cohorts)


@pytest.mark.skipif(not NIGHTLY, reason="needs root; every write of a device fails in turn in the gate")
def test_a_disk_that_is_full_costs_a_device_rounds_and_nothing_else(trial):
    """The device's folder is on a file system of 2 MB, which somebody fills and empties again."""
    place = trial.folder / "devices" / LAST
    place.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        out = trial.submit("full", **patient(rounds=ENDLESS))
        trial.wait_round(out, 1)
        trial.wait_part(out, LAST)
        filler, before = place / "filler", len(trial.processes.log(f"{LAST}-worker"))

        def is_refused() -> bool:
            """Fill the disk, again and again: a file that the device removes leaves room for the next."""
            with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            return "No space left" in trial.processes.log(f"{LAST}-worker")[before:]

        wait_until(is_refused, LONG, "a full disk")
        filler.unlink()
        trial.wait_part(out, LAST)
        kill_server(trial)
        rounds = end_run(trial, out)
        check_equals_simulation(out, trial.folder, "fedalt", rounds, LEAST)
        why = [reason for row in read_history(out) for reason in row.get("dropped_reasons", ())]
        assert any("No space left on device" in reason for reason in why), why
    finally:
        subprocess.run(["umount", "-l", place], check=True)
