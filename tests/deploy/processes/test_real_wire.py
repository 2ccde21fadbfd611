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


def streams(proxy: Proxy) -> dict[str, list[bytes]]:
    """Both directions of every connection, as they were and with messages in one piece."""
    raw = [bytes(each) for each in (*proxy.sent, *proxy.received)]
    return {"raw": raw, "joined": list(map(joined_bodies, raw))}


def test_nothing_personal_is_on_the_wire(trial):
    out = trial.submit("honest", algorithm="fedalt", rounds=ROUNDS)
    trial.finish(out)
    check_equals_simulation(out, trial.folder, "fedalt", ROUNDS)
    traffic = streams(trial.proxy)
    assert all(b"content-encoding" not in each.lower() for each in traffic["raw"])
    hidden = windows(personal_bytes("fedalt", ROUNDS))
    assert len(hidden) > 3000
    for kind, pieces in traffic.items():
        assert sum(map(len, pieces)) > 50_000, kind
        assert count_found(hidden, pieces) == 0, kind
        # Control: the same search finds what is shared, as it was sent at first and at last; in each kind by itself.
        for path in (out / "initial.safetensors", out / f"checkpoint/round-{ROUNDS:08d}/server.safetensors"):
            shared = windows([each.tobytes() for name, each in load_file(path).items() if "hidden" in name])
            assert count_found(shared, pieces) > 0.9 * len(shared) > 300, kind


@pytest.mark.skipif(not NIGHTLY, reason="the same control is in the gate, on serialised messages")
def test_a_smuggled_tensor_is_found(trial):
    out = trial.submit("smuggler", algorithm="smuggler", rounds=ROUNDS)
    trial.finish(out)
    hidden = windows(personal_bytes("smuggler", ROUNDS))
    for kind, pieces in streams(trial.proxy).items():
        assert count_found(hidden, pieces) > 0, kind
