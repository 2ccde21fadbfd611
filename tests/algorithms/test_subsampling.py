"""Subsampling: a part of FedAvg's change, and its bill."""

import math

import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, problem_of, serve

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.transport import pack

DATA = federated(image_clients((6, 13, 9)))
COMMON = {"lr": 0.3, "epochs": 2, "batch_size": 4, "weighting": "uniform"}


def mlp():
    return mo.models.mlp(4, 3, hidden=(6,), seed=2)


def uploads(algorithm, engine=Sequential, round=0, seed=0):
    problem = problem_of(mo.task.from_module(mlp(), loss="cross_entropy"), DATA, mo.split.nothing(mlp()), seed)
    received = algorithm.broadcast(problem.first_server(algorithm))
    jobs = problem.make_jobs(
        algorithm.phases, range(3), [problem.first_state(algorithm)] * 3, "train", round, part="train"
    )
    results = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo(round))
    return [update.upload for update, _ in results]


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
@pytest.mark.parametrize(("rescale", "factor"), [(False, 1), (True, 51 / 20)])
def test_what_is_sent_is_fedavgs_change_or_nothing(engine, rescale, factor):
    """0.4 of 51 numbers are 20 (20.4)."""
    whole = uploads(flat(mo.fedavg, **COMMON), engine)
    for upload, change in zip(
        uploads(flat(mo.subsampling, density=0.4, rescale=rescale, **COMMON), engine), whole, strict=True
    ):
        for name, p in upload.items():
            mask = p != 0
            torch.testing.assert_close(p[mask], factor * change[name][mask], rtol=1e-5, atol=0)
        assert 18 <= sum(int((p != 0).sum()) for p in upload.values()) <= 20  # a change may be 0 itself


def test_masks_are_new_for_every_client_and_round():
    algorithm = flat(mo.subsampling, **COMMON)
    one, later = uploads(algorithm), uploads(algorithm, round=1)
    weight = "hidden1.weight"
    patterns = [u[weight] != 0 for u in (*one, *later)]
    assert all(not torch.equal(a, b) for i, a in enumerate(patterns) for b in patterns[:i])


def test_rescaled_it_is_unbiased():
    """The mean over 400 seeds of a full-batch change, which no seed alters: each number is sent in half of them."""
    options = {"lr": 0.3, "batch_size": 13, "shuffle": False}
    whole = uploads(flat(mo.fedavg, **options))[1]
    algorithm = flat(mo.subsampling, rescale=True, **options)
    samples = [uploads(algorithm, seed=s)[1] for s in range(400)]
    for name, change in whole.items():
        mean = torch.stack([u[name] for u in samples]).mean(0)
        # x or 0 times 2: the standard deviation of the mean is |x| / 20.
        assert ((mean - change).abs() <= 5 * change.abs() / 20 + 1e-7).all()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_density_one_is_fedavg_bit_for_bit(engine):
    one, other = (
        mo.fit(mlp(), DATA, a, rounds=3, engine=engine)
        for a in (flat(mo.subsampling, density=1.0, **COMMON), flat(mo.fedavg, **COMMON))
    )
    assert all(torch.equal(p, other.shared_parameters()[n]) for n, p in one.shared_parameters().items())


def test_bytes_by_hand():
    """51 numbers down, 26 (25.5) up; with them goes a seed. Down is what FedAvg sends.

    A message is safetensors: 8 bytes for the length of its header, the header as JSON, filled up to a multiple of 8,
    then the seed (8 bytes) and 26 numbers of 4.
    """
    ledger, dense = (
        mo.fit(mlp(), DATA, a, rounds=2, engine="sequential").ledger
        for a in (flat(mo.subsampling, **COMMON), flat(mo.fedavg, **COMMON))
    )
    assert ledger["down_values"] == dense["down_values"] == 6 * 51 * 4
    assert ledger["down_payload"] == dense["down_payload"]
    assert ledger["up_values"] == 6 * 26 * 4
    header = (
        '{"subsampling:seed":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},'
        '"subsampling:values":{"dtype":"F32","shape":[26],"data_offsets":[8,112]}}'
    )
    message = 8 + math.ceil(len(header) / 8) * 8 + 112
    seed, values = torch.tensor([2**62]), torch.linspace(-1, 1, 26)
    assert len(pack({"subsampling:seed": seed, "subsampling:values": values})) == message
    assert ledger["up_payload"] == 6 * message
    assert ledger["flops"] == dense["flops"]


def test_bad_options_are_one_line():
    with pytest.raises(MoietyError, match=r"^`density` must be > 0"):
        mo.subsampling(shared=0.1, density=0.0)
    with pytest.raises(MoietyError, match=r"^`rescale` must be true or false"):
        mo.subsampling(shared=0.1, rescale=2)
