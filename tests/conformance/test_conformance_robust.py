"""Robust aggregators with every algorithm that sends something."""

import pytest
import torch
from conformance_table import NAMES, TABLE
from oracle_problems import federated, image_clients
from run_settings import with_settings

import moiety as mo
from moiety.server.mean import weighted_sum

MEAN = mo.aggregator.mean()
AGGREGATORS = [
    mo.aggregator.trimmed_mean(byzantine=1),
    mo.aggregator.nearest_neighbour_mixing(byzantine=1, then=mo.aggregator.krum(byzantine=1)),
]


def sends(algorithm):
    # Clients that draw from a posterior send different things though their data are the same.
    # A server that steps along a sum steps less far along a robust mean.
    joins = algorithm.aggregator is not None and algorithm.aggregator is not weighted_sum
    return joins and algorithm.needs != "everything" and algorithm.posterior is None


SENDING = [(row, name) for row, name in zip(TABLE, NAMES, strict=True) if sends(row.build(batch_size=9))]


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=lambda a: a.spec["name"])
@pytest.mark.parametrize("row", [row for row, _ in SENDING], ids=[name for _, name in SENDING])
def test_usable_with_every_algorithm(row, aggregator):
    """Clients with the same data send the same: then a robust aggregate is that, whatever one of five sends.

    So the shared part moves as with the mean and without an attack, which turns the mean itself round. Clients of an
    algorithm that draws for each of its own do not send the same (the median tells): there it is only far nearer.
    """
    (rows,) = image_clients([9])
    data, model = federated([rows] * 5), mo.models.mlp(4, 3, hidden=(6,), seed=1)
    algorithm = row.build(batch_size=16, shuffle=False)
    how = {"split": row.split(model), "rounds": 2, "engine": "vectorised"}
    attack = {"attack": mo.attack.inner_product_manipulation(epsilon=10.0), "attackers": [2]}

    def shared(aggregator, **more):
        params = mo.fit(
            model, data, algorithm, **with_settings(**how, **more, aggregator=aggregator)
        ).shared_parameters()
        return torch.cat([p.reshape(-1) for p in params.values()])

    honest, plain, robust = shared(MEAN), shared(MEAN, **attack), shared(aggregator, **attack)
    gap = float((plain - honest).norm())
    assert gap > 0.01
    if torch.allclose(shared(mo.aggregator.median()), honest, rtol=0, atol=1e-6):
        torch.testing.assert_close(robust, honest, rtol=0, atol=1e-6)
    else:
        assert float((robust - honest).norm()) < gap / 3
