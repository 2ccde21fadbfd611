"""How long a round of a federation of real processes takes on this machine, with how much memory and how many bytes.

    python -m benchmarks.devices --nodes 4 --rounds 20

A SuperLink, its executor, and for each node a SuperNode and a worker, over TLS, each node with a key. FedAlt on
scikit-learn's digits, a perceptron with 32 hidden units. In every round all devices train and evaluate, with two
messages each way. The first three rounds are left out: workers load their libraries in them. Figures go to
docs/deployment.md by hand.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from moiety.deploy.init import APP, DEFAULT, OUT, name_nodes, write_app
from moiety.deploy.local import HERE, LocalFederation
from moiety.deploy.processes import wait_until
from moiety.files import write_file
from moiety.run.checkpoint import find_checkpoint, round_of
from moiety.run.folder import has_ended, read_history, read_id

WARM = 3
PATIENCE = 1800.0


def measure(nodes: int, rounds: int, persistent: bool) -> None:
    """Run it once and print what it took."""
    names = name_nodes(nodes)
    with tempfile.TemporaryDirectory(prefix="moiety-devices-") as scratch:
        folder = Path(scratch) / "load"
        write_app(folder, [HERE], nodes=nodes)
        text = DEFAULT.replace("rounds = 10", f"rounds = {rounds}\nevaluate_every = 1")
        text = text.replace("clients = 4", f"clients = {nodes}").replace("alpha = 0.3", "alpha = 3.0")
        options = f'\n[deploy]\nclients = {nodes}\ndeadline = 600.0\nshare_metrics = "per_client"\n'
        write_file(folder / APP / "federation.toml", (text + options).encode(), private=False)
        out, start = folder / OUT, time.monotonic()
        with LocalFederation(folder, names, persistent=persistent) as federation:
            federation.start_server()
            for k, name in enumerate(names):
                device = {"partition-id": k, "name": name, "folder": str(folder / "devices" / name)}
                federation.start_node(name, device)
            federation.begin(folder / APP, {"rounds": rounds, "out": str(out)})
            wait_until(lambda: _rounds(out) >= WARM, PATIENCE, "the first rounds")
            print(f"{nodes} nodes: round {WARM} after {time.monotonic() - start:.0f} s from nothing", flush=True)
            before, busy = _rounds(out), _processor_seconds()
            wait_until(lambda: _rounds(out) >= rounds - 1, PATIENCE, "the last rounds")
            spent = {kind: seconds - busy.get(kind, 0.0) for kind, seconds in _processor_seconds().items()}
            turns, memory = _rounds(out) - before, _memory()
            wait_until(lambda: has_ended(out, read_id(out)), PATIENCE, "the end")
        history = read_history(out)
    seconds = [row["seconds"] for row in history]
    each = [after - before for before, after in zip(seconds[WARM - 1 :], seconds[WARM:], strict=False)]
    answers = history[-1]["client_updates"]
    assert all(row["metric"] is not None for row in history), "every round has an evaluation"
    print(f"seconds a round: median {statistics.median(each):.2f}, from {min(each):.2f} to {max(each):.2f}")
    shares = ", ".join(f"{kind} {seconds / turns:.2f}" for kind, seconds in sorted(spent.items()))
    print(f"processor seconds a round: {sum(spent.values()) / turns:.2f} ({shares})")
    print(f"memory of all {memory[0]} processes: {memory[1] / 1e9:.2f} GB, what they share counted once")
    print(f"{answers} answers; bytes of models for each: {history[-1]['up_payload'] / answers:.0f} up")


def _rounds(out: Path) -> int:
    newest = find_checkpoint(out) if out.is_dir() else None
    return 0 if newest is None else round_of(newest)


def _processes() -> list[psutil.Process]:
    """The processes that this one has started and that have not ended."""
    started = psutil.Process().children(recursive=True)
    return [each for each in started if each.status() != psutil.STATUS_ZOMBIE]


def _processor_seconds() -> dict[str, float]:
    """What the processes of each kind have computed so far."""
    spent: dict[str, float] = {}
    for process in _processes():
        command = " ".join(process.cmdline())
        words = {
            "superlink": "flower-superlink",
            "server": "flwr-serverapp",
            "nodes": "worker node",
            "workers": "worker",
        }
        kind = next((name for name, word in words.items() if word in command), "others")
        times = process.cpu_times()
        spent[kind] = spent.get(kind, 0.0) + times.user + times.system
    return spent


def _memory() -> tuple[int, float]:
    """How many processes this one has started, and their memory."""
    processes = _processes()
    return len(processes), float(sum(each.memory_full_info().pss for each in processes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--public", action="store_true", help="Flower's own way: a process for every message")
    given = parser.parse_args()
    measure(given.nodes, given.rounds, persistent=not given.public)
