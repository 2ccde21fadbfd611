"""Sub-FedAvg against NumPy, its thresholds, its end, and its bill by hand."""

import numpy as np
import oracle_sparse as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, split_of

import moiety as mo
from moiety.errors import MoietyError
from moiety.split.masks import layer_counts
from moiety.transport import pack
from moiety.transport.sparse import sparse_pack
from moiety.types import ClientUpdate

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
SIZES = (7, 5, 9)
DATA = federated(image_clients((6, 13, 9)))


def mlp():
    return mo.models.mlp(4, 3, hidden=(6,), seed=2)


def masks_of(run, clients=3):
    return [state.mask for state in run._loop.progress.store.get(range(clients))]


@ENGINES
@pytest.mark.parametrize(("most_loss", "distance"), [(1e9, 0.0), (4.0, 0.0), (1e9, 0.03)], ids=["all", "loss", "gap"])
def test_rounds_against_numpy(engine, most_loss, distance):
    """Six rounds of three full-batch epochs, two of three clients asked; the metric of this task is its loss.

    The thresholds are such that in the first case all prune, and in the others some do.
    """
    options = {"lr": 0.05, "epochs": 3, "batch_size": 9, "prune_rate": 0.3, "distance": distance}
    algorithm = flat(mo.sub_fedavg, density=0.5, accuracy=most_loss, **options)
    cohorts = []
    run = mo.fit(
        ref.task(),
        federated(ref.clients(SIZES)),
        algorithm,
        split=split_of(["W", "V", "b"], sizes={"W": 20, "V": 15, "b": 3}),
        rounds=6,
        cohort=2,
        engine=engine,
        callbacks=[lambda run, record: cohorts.append(record.cohort)],
    )
    start = {n: p.numpy() for n, p in ref.task().init.items()}
    final = {"W": 9, "V": 7}  # 19 of 38 without 3 dense ones are 16, by 20 : 15: 9.14 and 6.86
    assert layer_counts(ref.task().init, 0.5, "uniform") == final
    w, masks = ref.sub_fedavg(
        start,
        ref.clients(SIZES),
        cohorts,
        final,
        lr=0.05,
        epochs=3,
        rate=0.3,
        most_loss=most_loss,
        distance=distance,
    )
    for name, p in run.shared_parameters().items():
        np.testing.assert_allclose(p.numpy(), w[name], atol=1e-12)
    for k, mask in enumerate(masks_of(run)):
        assert all(np.array_equal(mask[n].numpy(), m) for n, m in masks[k].items()), k
    pruned = sum(int((~m).sum()) for each in masks for m in each.values())
    unlimited = ref.sub_fedavg(
        start, ref.clients(SIZES), cohorts, final, lr=0.05, epochs=3, rate=0.3, most_loss=1e9, distance=0
    )[1]
    most = sum(int((~m).sum()) for each in unlimited for m in each.values())
    assert 0 < pruned < most or (pruned == most and (most_loss, distance) == (1e9, 0.0))


def test_ends_at_the_density_that_was_asked():
    """42 weights and 9 biases: 0.6 of 51 is 31 (30.6), 22 weights."""
    algorithm = mo.sub_fedavg(
        shared=mo.sgd(0.1, epochs=2, batch_size=4), density=0.6, prune_rate=0.2, accuracy=0, distance=0
    )
    run = mo.fit(mlp(), DATA, algorithm, rounds=12, engine="sequential")
    for mask in masks_of(run):
        assert sum(int(m.sum()) for m in mask.values()) == 22
    for name, p in run.parameters(0).items():
        if name in masks_of(run)[0]:
            assert (p[~masks_of(run)[0][name]] == 0).all()


def test_nothing_is_pruned_below_the_accuracy_or_the_distance():
    for options in ({"accuracy": 1.1, "distance": 0}, {"accuracy": 0, "distance": 1.0}):
        run = mo.fit(mlp(), DATA, flat(mo.sub_fedavg, lr=0.1, epochs=2, **options), rounds=3, engine="sequential")
        assert all(bool(m.all()) for mask in masks_of(run) for m in mask.values())


def test_accuracy_is_that_of_the_trained_model_on_training_examples():
    """A client that is right in all its examples prunes at a threshold of 1, one that is not does not."""
    columns = image_clients((6, 6))
    columns[0]["y"][:] = 1  # one class only: soon learnt
    columns[1]["x"][:] = 0  # nothing to learn from
    columns[1]["y"][:] = [0, 1, 2, 0, 1, 2]
    algorithm = mo.sub_fedavg(shared=mo.sgd(1.0, epochs=10, batch_size=6), accuracy=1.0, distance=0, prune_rate=0.3)
    run = mo.fit(mlp(), federated(columns), algorithm, rounds=1, engine="sequential")
    pruned = [any(bool((~m).any()) for m in mask.values()) for mask in masks_of(run, 2)]
    assert pruned == [True, False]


def test_the_mean_is_over_those_who_kept_a_coordinate():
    """Three clients, by hand: kept by all (1, 2, 6) is 3, by two (2, 6) is 4, by one 6, by none 0; a bias 3."""
    from moiety.algorithms.sub_fedavg import mean_of_active

    masks = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    updates = [
        ClientUpdate(
            {
                "w": torch.tensor([[v * m for m in mask]]),
                "b": torch.tensor([v]),
                "mask:w": torch.tensor([mask], dtype=torch.uint8),
            },
            torch.tensor(1.0, dtype=torch.float64),
            {},
        )
        for v, mask in zip((1.0, 2.0, 6.0), masks, strict=True)
    ]
    mean = mean_of_active(updates)
    assert mean["w"].tolist() == [[3.0, 4.0, 6.0, 0.0]]
    assert mean["b"].tolist() == [3.0]
    assert set(mean) == {"w", "b"}


@ENGINES
def test_density_one_is_fedavg(engine):
    common = {"lr": 0.1, "batch_size": 4, "shuffle": False, "weighting": "uniform"}
    net = mlp().double()
    one = mo.fit(net, DATA, flat(mo.sub_fedavg, density=1.0, epochs=3, **common), rounds=3, engine=engine)
    other = mo.fit(net, DATA, flat(mo.fedavg, epochs=3, **common), rounds=3, engine=engine)
    for name, p in one.parameters(1).items():
        torch.testing.assert_close(p, other.parameters(1)[name], rtol=1e-10, atol=1e-12)
    assert one.history[-1]["train_loss"] == pytest.approx(other.history[-1]["train_loss"], rel=1e-12)


def test_bytes_and_flops_by_hand():
    """One round prunes 0.25 of 24 and of 18: 6 and 4. Down 51 numbers, up 41 and the mask; then 41 down, 34 up.

    Three quarters of 18 and of 14 are left then: 4 and 3 go. Arithmetic is that of the mask at a turn's beginning: with
    28 rows, two epochs of training and one forward pass for the accuracy, 96 and 48 in the first layer, 108 and 36 in
    the head.
    """
    algorithm = mo.sub_fedavg(shared=mo.sgd(0.1, epochs=2), density=0.3, prune_rate=0.25, accuracy=0, distance=0)
    ledgers = [mo.fit(mlp(), DATA, algorithm, rounds=r, engine="sequential").ledger for r in (1, 2)]
    params = {n: p.detach() for n, p in mlp().named_parameters()}
    whole = len(pack(params))

    def payload(first, head, known):
        masks = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in params.items() if p.dim() == 2}
        for m, count in zip(masks.values(), (first, head), strict=True):
            m.view(-1)[:count] = True
        return len(pack(sparse_pack(params, masks, mask_known=known)))

    assert ledgers[0]["down_values"] == 3 * 51 * 4
    assert ledgers[0]["down_payload"] == pytest.approx(3 * whole, abs=3 * 8)  # the header says one axis, not two
    assert ledgers[0]["up_values"] == 3 * 41 * 4
    assert ledgers[0]["up_payload"] == 3 * payload(18, 14, known=False)
    assert ledgers[1]["down_values"] == ledgers[0]["down_values"] + 3 * 41 * 4
    assert ledgers[1]["down_payload"] == ledgers[0]["down_payload"] + 3 * payload(18, 14, known=True)
    assert ledgers[1]["up_values"] == ledgers[0]["up_values"] + 3 * 34 * 4
    first, head = 2 * 96 + 48, 2 * 108 + 36
    assert ledgers[0]["flops"] == pytest.approx(28 * (first + head))
    assert ledgers[1]["flops"] == pytest.approx(28 * (first + head) + 28 * (first * 18 / 24 + head * 14 / 18))
    assert ledgers[1]["search_flops"] == 0


def test_with_a_codec_masks_go_up_as_bytes_in_every_round():
    """42 masked weights, 51 numbers as a byte each with 127 levels, and the norms of four tensors: 109 bytes."""
    algorithm = mo.sub_fedavg(shared=mo.sgd(0.1, epochs=2), accuracy=2.0)  # nobody prunes: no mask is ever new
    run = mo.fit(
        mlp(), DATA, algorithm, rounds=2, engine="sequential", settings=mo.Settings(codec=mo.codec.qsgd(levels=127))
    )
    assert run.ledger["up_values"] == 2 * 3 * (42 + 51 + 4 * 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"density": 0.0}, "`density` must be > 0"),
        ({"prune_rate": 0}, "`prune_rate` must be > 0 and < 1"),
        ({"distance": -1}, "`distance` must be >= 0 and <= 1"),
        ({"accuracy": float("nan")}, "`accuracy` must be finite"),
        ({"epochs": 0}, "`epochs` must be >= 1"),
    ],
)
def test_bad_options_are_one_line(options, text):
    with pytest.raises(MoietyError) as error:
        flat(mo.sub_fedavg, lr=0.1, **options)
    assert str(error.value).startswith(text)
