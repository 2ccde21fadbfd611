"""What is local training's own; that it is plain SGD is in tests/conformance."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, scalar_task, split_of

import moiety as mo
from moiety import tree
from moiety.errors import MoietyError


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_each_client_goes_its_own_way(engine):
    """F = (u - y)^2 / 2 (b = 0) with y = 4 and y = -8, rate 1/2, two rounds: 0 -> 2 -> 3 and 0 -> -4 -> -6."""
    data = federated([{"a": np.ones(1), "b": np.zeros(1), "y": np.full(1, y)} for y in (4.0, -8.0)])
    run = mo.fit(
        scalar_task(0.0), data, mo.local_only(personal=0.5), split=split_of([], ["u", "v"]), rounds=2, engine=engine
    )
    assert [float(run.parameters(i)["u"]) for i in (0, 1)] == [3.0, -6.0]
    assert float(run.shared_parameters()["u"]) == 0.0, "the shared model alone is the start"
    assert tree.leaves(run._loop.progress.server) == {}


def test_it_refuses_a_split_with_something_shared():
    net = mo.models.mlp(4, 3)
    with pytest.raises(MoietyError, match=r"^`split` must be one with nothing shared for local_only, got "):
        mo.fit(
            net,
            federated(image_clients([3])),
            mo.local_only(personal=0.1),
            split=mo.split.output_layer(net),
            rounds=1,
            engine="sequential",
        )


def test_a_new_client_trains_alone_from_the_common_start():
    """(c - 10)^2 from c = 0 with rate 1/4: 5, then 7.5, whatever the others did."""
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    run = mo.fit(line, data, mo.local_only(personal=0.25), rounds=3, engine="sequential")
    for passes, bias in ((1, 5.0), (2, 7.5)):
        assert (
            float(run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)}, passes=passes).bias.detach()) == bias
        )
