"""A proxy without TLS records every byte between nodes and server during a run: nothing personal is among them."""

from __future__ import annotations

import pytest
from capture import count_found, joined_bodies, windows
from harness import Trial, check_equals_simulation
from night import NIGHTLY
from proxy import Proxy
from safetensors.numpy import load_file
from test_what_crosses import ROUNDS, personal_bytes


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wire") / "trial"
    with Trial(folder, secure=False) as running, Proxy(running.link.port) as proxy:
        running.start(proxy, by_proxy=running.nodes)
        yield running


def streams(proxy: Proxy) -> list[bytes]:
    """Both directions of every connection, as they were and with messages in one piece."""
    raw = [bytes(each) for each in (*proxy.sent, *proxy.received)]
    return [*raw, *map(joined_bodies, raw)]


def test_nothing_personal_is_on_the_wire(trial):
    out = trial.submit("honest", algorithm="fedalt", rounds=ROUNDS)
    trial.finish(out)
    check_equals_simulation(out, trial.folder, "fedalt", ROUNDS)
    seen = streams(trial.proxy)
    assert sum(map(len, seen)) > 100_000
    assert all(b"content-encoding" not in each.lower() for each in seen)
    hidden = windows(personal_bytes("fedalt", ROUNDS))
    assert count_found(hidden, seen) == 0
    # Control: the same search finds what is shared, as it was sent at first and at last.
    for path in (out / "initial.safetensors", out / f"checkpoint/round-{ROUNDS:08d}/server.safetensors"):
        shared = windows([each.tobytes() for name, each in load_file(path).items() if "hidden" in name])
        assert count_found(shared, seen) > 0.9 * len(shared) > 300


@pytest.mark.skipif(not NIGHTLY, reason="the same control is in the gate, on serialised messages")
def test_a_smuggled_tensor_is_found(trial):
    out = trial.submit("smuggler", algorithm="smuggler", rounds=ROUNDS)
    trial.finish(out)
    assert count_found(windows(personal_bytes("smuggler", ROUNDS)), streams(trial.proxy)) > 0
