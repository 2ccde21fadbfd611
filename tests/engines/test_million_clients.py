"""A population of a million: states live on disk, and a run that stopped goes on as if it had not."""

import numpy as np
import torch

import moiety as mo
from moiety.data.federated import FederatedData, NumberNames

CLIENTS = 1_000_000


def test_personal_states_of_a_million_clients_survive_resume(tmp_path):
    """Three rounds, a resume of the folder, three more: the same as six, for every client that was ever asked."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((CLIENTS, 2), dtype=np.float32)
    ends = np.arange(1, CLIENTS + 1)
    bounds = np.stack([ends - 1, ends, ends, ends], axis=1)
    data = FederatedData({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, bounds, NumberNames(CLIENTS), 2)
    model = mo.models.mlp(2, 2, hidden=(3,))
    clients: list[int] = []

    def fit(folder, rounds):
        return mo.fit(
            model,
            data,
            mo.fedalt(shared=mo.sgd(0.1, batch_size=1), personal=mo.sgd(0.5, batch_size=1)),
            split=mo.split.output_layer(model),
            rounds=rounds,
            cohort=25,
            engine="sequential",
            settings=mo.Settings(evaluate_every=rounds, evaluate_clients=10),
            out=tmp_path / folder,
            callbacks=[lambda run, record: clients.extend(record.cohort)],
        )

    fit("stopped", 3)
    early = clients.copy()
    halves = mo.resume(tmp_path / "stopped", rounds=6, data=data)
    clients.clear()
    straight = fit("straight", 6)
    assert clients[: len(early)] == early
    assert len(set(clients)) > 140  # almost all of them are asked once, so what the first half learnt must have lasted
    first = straight.shared_parameters()
    for client in clients:
        one, other = halves.parameters(client), straight.parameters(client)
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert any(not torch.equal(other[name], first[name]) for name in straight._loop.problem.split.personal)
    # A sparse file: what was never asked takes no room.
    size = (tmp_path / "stopped" / "clients" / "states.bin").stat()
    assert size.st_size >= CLIENTS * 4 * 8
    assert size.st_blocks * 512 < 8_000_000
