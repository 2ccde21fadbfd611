"""A phase that walks: one batch a round, through the data in passes."""

import numpy as np
import pytest

from moiety.engines.rows import phase_rows
from moiety.types import Phase


def rows(t, *, steps=1, batch=1, shuffle=True, seed=0, client=3, n=7):
    phase = Phase(None, steps, batch, shuffle, walk=True)
    return phase_rows(phase, 100, 100 + n, "online", "train", t, client, seed=seed)


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 50])
def test_every_pass_visits_every_row_once(batch):
    per_pass = -(-7 // min(batch, 7))
    for epoch in range(3):
        order = np.concatenate([rows(t, batch=batch).order for t in range(epoch * per_pass, (epoch + 1) * per_pass)])
        assert sorted(order) == list(range(100, 107))


def test_passes_have_orders_of_their_own_and_so_have_clients_and_seeds():
    def order(epoch, **how):
        return [int(rows(t, **how).order[0]) for t in range(7 * epoch, 7 * epoch + 7)]

    assert len({tuple(o) for o in (order(0), order(1), order(0, client=4), order(0, seed=1))}) == 4
    assert order(0, shuffle=False) == order(5, shuffle=False) == list(range(100, 107))


def test_many_steps_in_one_round_are_many_rounds_of_one_step():
    """Rounds of 5 steps in passes of 4 batches (2, 2, 2, 1 rows): a round goes over the end of a pass."""
    for t in range(4):
        ones = [rows(5 * t + k, batch=2) for k in range(5)]
        many = rows(t, steps=5, batch=2)
        assert many.order.tolist() == [int(r) for one in ones for r in one.order]
        assert many.sizes.tolist() == [int(s) for one in ones for s in one.sizes]
    assert rows(0, steps=4, batch=2).sizes.tolist() == [2, 2, 2, 1]
