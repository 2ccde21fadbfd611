"""Codecs in runs: what the server gets, from a file, through a resume."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_cases import StopHereError, batch_norm_net, federation, mlp, same_runs, stop_after
from oracle_problems import federated, image_clients
from run_settings import with_settings

import moiety as mo
from moiety.cli import main
from moiety.types import Codec

CODECS = {"qsgd": mo.codec.qsgd(levels=7), "rand_k": mo.codec.rand_k(k=0.5)}


def fit_run(engine, codec, **options):
    net = mlp()
    split = mo.split.by_name(net, personal=["head"])
    how = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    return mo.fit(
        net,
        federation(),
        how,
        **with_settings(split=split, rounds=4, cohort=3, seed=5, engine=engine, codec=codec, **options),
    )


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_resumed_run_is_the_same_bit_for_bit(codec, tmp_path):
    whole = fit_run("sequential", codec)
    with pytest.raises(StopHereError):
        fit_run("sequential", codec, out=tmp_path / "run", callbacks=[stop_after(2)], checkpoint_every=1)
    net = mlp()
    again = mo.resume(tmp_path / "run", model=net, data=federation(), split=mo.split.by_name(net, personal=["head"]))
    same_runs(again, whole)


def test_the_server_moves_by_the_mean_of_what_arrives():
    """FedAvg, one client, one full-batch step: qsgd with one level sends 0 or the whole norm with its sign.

    So every tensor moves by multiples of its change's norm alone; and all seeds together move it as without a codec:
    the mean over n runs is within (norm) sqrt(2 log(2 d / q) / n) of that, but for one time in 1 / q (Hoeffding).
    """
    data = federated(image_clients([8]))
    algorithm = mo.fedavg(shared=mo.sgd(0.5, steps=1, batch_size=8, shuffle=False))
    net = mo.models.mlp(4, 3, hidden=(), seed=2).double()
    first = {n: p.detach().clone() for n, p in net.named_parameters()}

    def measure_move(seed, codec):
        run = mo.fit(net, data, algorithm, rounds=1, seed=seed, engine="sequential", settings=mo.Settings(codec=codec))
        return {n: p.detach() - first[n] for n, p in run.export("client-0").named_parameters()}

    plain, n, q = measure_move(0, None), 40, 1e-7
    runs = [measure_move(seed, mo.codec.qsgd(levels=1)) for seed in range(n)]
    for name, change in plain.items():
        norm = float(change.norm())
        moves = torch.stack([run[name] for run in runs])
        steps = moves / norm
        assert torch.allclose(steps, steps.round(), atol=1e-9)
        assert {float(x) for x in steps.round().abs().unique()} <= {0.0, 1.0}
        room = norm * float(np.sqrt(2 * np.log(2 * change.numel() / q) / n))
        assert float((moves.mean(0) - change).abs().max()) < room
        assert len({tuple(run[name].flatten().tolist()) for run in runs}) > 1


@pytest.mark.parametrize(("rounds", "variance"), [(1, 1 / 2), (2, 1.0)])
def test_every_client_draws_noise_of_its_own_in_every_round(rounds, variance):
    """Two clients send 0, and the codec adds N(0, 1) to each number.

    The server moves by the mean of two independent draws a round, of variance 1/2, and two rounds add up to 1. Were the
    noise the same for both clients, or in both rounds, the variance would be twice that. The variance of n = 10,100
    numbers has a standard deviation of sqrt(2 / n) of itself, 1.4 %; six of these are allowed.
    """
    net = mo.models.mlp(100, 100, hidden=(), seed=2).double()
    first = {n: p.detach().clone() for n, p in net.named_parameters()}
    data = federated([{"x": np.zeros((2, 100)), "y": np.zeros(2, dtype=np.int64)}] * 2)
    how = mo.fedavg(shared=0.1)

    def client_update(work, received, state):
        update, after = how.client_update(work, received, state)
        return update._replace(upload={n: torch.zeros_like(p) for n, p in update.upload.items()}), after

    def encode(upload, generator):
        return {n: p + torch.from_numpy(generator.standard_normal(p.shape)) for n, p in upload.items()}

    settings = mo.Settings(codec=Codec(encode, lambda packed, like: packed))
    silent = replace(how, client_update=client_update)
    run = mo.fit(net, data, silent, rounds=rounds, engine="sequential", settings=settings)
    moves = np.concatenate([(p - first[n]).numpy().ravel() for n, p in run.shared_parameters().items()])
    assert np.mean(moves**2) == pytest.approx(variance, rel=6 * np.sqrt(2 / len(moves)))


def test_shared_running_statistics_arrive_and_their_count_is_exact():
    net = batch_norm_net()
    split = mo.split.by_name(net, personal=["head"], running_stats="shared")
    how = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    options = {"split": split, "rounds": 2, "engine": "sequential", "partial": False}
    run = mo.fit(net, federation(), how, **with_settings(codec=mo.codec.qsgd(levels=255), **options))
    plain = mo.fit(net, federation(), how, **with_settings(**options))
    one, other = run.parameters("c0"), plain.parameters("c0")
    assert torch.equal(one["norm.num_batches_tracked"], other["norm.num_batches_tracked"])
    assert not torch.equal(one["norm.running_mean"], other["norm.running_mean"])
    assert torch.allclose(one["norm.running_mean"], other["norm.running_mean"], atol=0.05)


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_an_upload_that_arrives_not_finite_is_left_out():
    """A step of 1e37 on numbers near 1: the norm of the change does not fit into the float32 that is sent."""
    net = mo.models.mlp(4, 3, hidden=(), seed=2)
    how = mo.fedavg(shared=mo.sgd(1e38, steps=1, batch_size=8))
    data = federated(image_clients([8, 8]))
    big = {n: torch.full_like(p, 3e38) for n, p in net.named_parameters()}
    inner = how.client_update

    def client_update(work, received, state):
        update, after = inner(work, received, state)
        return update._replace(upload=dict(big)), after

    run = mo.fit(
        net,
        data,
        replace(how, client_update=client_update),
        rounds=1,
        engine="sequential",
        settings=mo.Settings(codec=CODECS["qsgd"]),
    )
    assert run.history[-1]["dropped"] == ["1:client-0", "1:client-1"]
    for name, p in run.export("client-0").named_parameters():
        assert torch.equal(p, dict(net.named_parameters())[name])


TOML = """
[data]
name = "digits"
clients = 4
per_client = 20
[model]
name = "linear"
inputs = 64
outputs = 10
[algorithm]
name = "fedavg"
shared = 0.1
[codec]
{codec}
[run]
rounds = 1
"""


@pytest.mark.parametrize(
    ("text", "codec"), [('name = "qsgd"\nlevels = 7', "qsgd"), ('name = "rand_k"\nk = 0.5', "rand_k")]
)
def test_a_file_names_a_codec(text, codec, tmp_path, capsys):
    """650 numbers and two tensors: 4 bits each and two norms, or 325 values and a seed; four clients send once."""
    (tmp_path / "run.toml").write_text(TOML.format(codec=text))
    words = ["run", tmp_path / "run.toml", "--engine", "sequential", "--out", tmp_path / "out"]
    assert main([str(word) for word in words]) == 0
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text())
    assert ledger["up_values"] == 4 * {"qsgd": 650 // 2 + 2 * 4, "rand_k": 325 * 4 + 8}[codec]
    again = mo.resume(tmp_path / "out", rounds=2)  # the codec is made from the folder
    assert again.ledger["up_values"] == 2 * ledger["up_values"]


def test_a_file_that_names_no_codec_we_know_is_one_line(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(TOML.format(codec='name = "qsgf"\nlevels = 7'))
    assert main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "`codec.name` must be one of the known names, got 'qsgf'. Did you mean qsgd?" in capsys.readouterr().err


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_running_statistics_are_not_compressed(codec):
    """After one round they are those of the run without a codec; a variance of compressed changes could be negative."""
    net = batch_norm_net()
    data = federated(image_clients([8, 6]))
    split = mo.split.nothing(net, running_stats="shared")
    options = {"split": split, "rounds": 1, "engine": "sequential"}
    plain, packed = (
        mo.fit(net, data, mo.fedavg(shared=0.1), **with_settings(codec=c, **options)).shared_parameters()
        for c in (None, codec)
    )
    assert all(torch.equal(plain[name], packed[name]) for name, _ in net.named_buffers())
    assert not torch.equal(plain["body.weight"], packed["body.weight"])
