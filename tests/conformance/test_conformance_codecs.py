"""Every algorithm whose clients send something runs with a codec, and pays for what is really packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance_table import NAMES, TABLE
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.loop.exchange import declare_layouts
from moiety.split.masks import layer_counts
from moiety.transport import pack

CODECS = {"qsgd": mo.codec.qsgd(levels=7), "rand_k": mo.codec.rand_k(k=0.5)}
DATA = federated(image_clients([3, 5, 2]))
SENDS = {
    name: row
    for row, name in zip(TABLE, NAMES, strict=True)
    if row.build().aggregator is not None and row.personal != ("u", "v")
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("row", SENDS.values(), ids=SENDS)
def test_every_algorithm_runs_and_pays_for_what_is_packed(row, codec):
    """All uploads of a run are laid out alike, so each costs the length of one of them, really packed.

    FedSpa's clients find a new mask in the first of two rounds, which goes up beside: a bit for each weight.
    """
    net = mo.models.mlp(4, 3, hidden=(5,), seed=2)
    uploads, messages = [], []

    def encode(upload, rng):
        uploads.append({name: p.clone() for name, p in upload.items()})
        packed = codec.encode(upload, rng)
        messages.append(packed)
        return packed

    recorder = replace(codec, encode=encode)
    run = mo.fit(
        net,
        DATA,
        row.build(),
        split=row.split(net),
        rounds=2,
        engine="sequential",
        settings=mo.Settings(codec=recorder),
    )
    assert len(uploads) == 2 * 3
    algorithm = row.build()
    layout = declare_layouts(run._loop.problem, algorithm)[1]
    plain = {name: p for name, p in layout.items() if algorithm.wire.uncompressed(name)}
    masks = 0
    if any(phase.search for phase in algorithm.phases.values()):
        bits = {
            f"bits:{n}": torch.zeros(-(-p.numel() // 8), dtype=torch.uint8) for n, p in layout.items() if p.dim() > 1
        }
        active = {n: torch.zeros(k) for n, k in layer_counts(layout, 0.6, "erk").items()}
        masks = 3 * (len(pack({**layout, **active, **bits})) - len(pack({**layout, **active})))
        assert masks > 3 * sum(len(b) for b in bits.values())
    assert run.ledger["up_payload"] == sum(len(pack({**packed, **plain})) for packed in messages) + masks
    rest = {n: p.shape for n, p in layout.items() if n not in plain}
    assert all({n: p.shape for n, p in upload.items()} == rest for upload in uploads)
    assert run.ledger["up_payload"] < 6 * len(pack(layout))
    assert all(np.isfinite(each["loss"]) for each in run.clients)
