"""``moiety deploy demo``: a federation of real processes on this machine, one of which is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from moiety.deploy.folders import Status, load_app, open_device
from moiety.deploy.init import APP, DEFAULT, OUT, write_app
from moiety.deploy.local import HERE, RUN, LocalFederation
from moiety.deploy.processes import wait_until
from moiety.errors import must
from moiety.files import write_file
from moiety.run.checkpoint import find_checkpoint, round_of
from moiety.run.folder import has_ended, read_id

NODES, BEFORE = 4, 3
"""How many nodes there are, and after which round the last of them is killed."""
PATIENCE = 900.0
HEAD = ["device", "state", "test rows", "shared model", "own accuracy", "accuracy without its own part"]
OPTIONS = """
[deploy]
clients = 4
least = 2
deadline = 8.0
"""


def run_demo(folder: Path, rounds: int, say: Callable[[str], None], *, persistent: bool = True) -> Status:
    """Train on four nodes, kill one of them on the way, and compare what each device has in the end.

    Args:
        folder: a new folder; everything is in it, the devices' folders too.
        rounds: how many rounds.
        say: gets a line for every step.
        persistent: with workers that load their libraries once.
    """
    must(rounds > BEFORE, "rounds", f"> {BEFORE}, after which a node is killed", rounds)
    write_app(folder, [HERE], nodes=NODES)
    text = DEFAULT.replace("rounds = 10", f"rounds = {rounds}") + OPTIONS
    write_file(folder / APP / "federation.toml", text.encode(), private=False)
    out, names = folder / OUT, [f"node-{k + 1}" for k in range(NODES)]
    configs: dict[str, dict[str, str | int]] = {
        name: {"partition-id": k, "name": name, "folder": str(folder / "devices" / name)}
        for k, name in enumerate(names)
    }
    victim = names[-1]
    with LocalFederation(folder, names, persistent=persistent) as federation:
        say(f"starting a SuperLink at {federation.link.place}, with TLS and authentication of nodes")
        federation.start_server()
        say(f"starting {NODES} nodes, each with a key, a folder and rows of its own")
        for name, config in configs.items():
            federation.start_node(name, config)
        federation.begin(folder / APP, {"rounds": rounds, "out": str(out)})
        wait_until(lambda: _rounds(federation, out) >= BEFORE, PATIENCE, f"round {BEFORE}")
        federation.kill_node(victim)
        say(f"round {BEFORE} is done: {victim} is killed (kill -9), the others train on")
        federation.processes.wait(RUN, PATIENCE)  # devices take the last model before it ends
        must(has_ended(out, read_id(out)), "run", "one that ends well", "another", federation.processes.tell(RUN))
        say(f"round {rounds} is done; what follows is read from the devices' own folders, without the server")
    sentence = f"{NODES} devices, {rounds} rounds; the device that was killed still predicts with the model it has."
    return Status(sentence, HEAD, _compare(folder, names, victim))


def _compare(folder: Path, names: Sequence[str], victim: str) -> list[list[str]]:
    """A row for each device: what its own model and the shared model make of its test rows."""
    app, rows = load_app(folder / APP), []
    for k, name in enumerate(names):
        device = open_device(app, folder / "devices" / name, f"partition-id={k}")
        run = device.own_run()
        (row,) = (each for each in run.evaluate() if each["client"] == name)
        state = "killed" if name == victim else "running"
        model = f"of round {run._loop.progress.round}"
        rows.append([name, state, str(row["n_test"]), model, f"{row['metric']:.1%}", f"{row['shared_metric']:.1%}"])
    return rows


def _rounds(federation: LocalFederation, out: Path) -> int:
    """The rounds that are done; an error where the server's side has ended too early."""
    newest = find_checkpoint(out) if out.is_dir() else None
    is_over = federation.processes.has_ended(RUN)
    must(not is_over, "run", "one that goes on", "one that ended", federation.processes.tell(RUN))
    return 0 if newest is None else round_of(newest)
