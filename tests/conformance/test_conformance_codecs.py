"""Every algorithm whose clients send something runs with a codec, and pays for what is really packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conformance_table import NAMES, TABLE
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.engines.rounds import crossing
from moiety.transport import pack

CODECS = {"qsgd": mo.codec.qsgd(levels=7), "rand_k": mo.codec.rand_k(k=0.5)}
DATA = federated(image_clients([3, 5, 2]))
SENDS = {
    name: row for row, name in zip(TABLE, NAMES, strict=True) if row.build().uploads and row.personal != ("u", "v")
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("row", SENDS.values(), ids=SENDS)
def test_every_algorithm_runs_and_pays_for_what_is_packed(row, codec):
    """All uploads of a run are laid out alike, so each costs the length of one of them, really packed."""
    net = mo.models.mlp(4, 3, hidden=(5,), seed=2)
    seen, sent = [], []

    def encode(upload, rng):
        seen.append({name: p.clone() for name, p in upload.items()})
        packed = codec.encode(upload, rng)
        sent.append(packed)
        return packed

    watched = replace(codec, encode=encode)
    run = mo.fit(net, DATA, row.build(), split=row.split(net), rounds=2, engine="sequential", codec=watched)
    assert len(seen) == 2 * 3
    algorithm = row.build()
    layout = crossing(run._rounds.problem, algorithm)[1]
    plain = {name: p for name, p in layout.items() if algorithm.uncompressed and algorithm.uncompressed(name)}
    assert run.ledger["up_payload"] == sum(len(pack({**packed, **plain})) for packed in sent)
    rest = {n: p.shape for n, p in layout.items() if n not in plain}
    assert all({n: p.shape for n, p in upload.items()} == rest for upload in seen)
    assert run.ledger["up_payload"] < 6 * len(pack(layout))
    assert all(np.isfinite(each["loss"]) for each in run.clients)
