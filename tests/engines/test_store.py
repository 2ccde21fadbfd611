"""Personal states on disk against a plain dict, and who is asked."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from engine_cases import refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from moiety import tree
from moiety.clients import DiskStore, Store, uniform_cohort


class State(NamedTuple):
    """Leaves of several types, of odd sizes: a record is 4 * 3 + 8 + 8 * 5 + 4 + 1 = 65 bytes."""

    personal: dict[str, Tensor]
    count: Tensor


def state(seed: int = 0) -> State:
    draw = torch.Generator().manual_seed(seed)
    tensors = {
        "a": torch.randn(3, generator=draw),
        "b/c": torch.randn((), generator=draw, dtype=torch.float64),
        "d": torch.randint(-(2**62), 2**62, (5, 1), generator=draw),
        "e": torch.randn((1, 1), generator=draw),
        "f": torch.randint(0, 2, (1,), generator=draw).bool(),
    }
    return State({k: v for k, v in tensors.items() if k != "e"}, tensors["e"])


def same(one: Any, other: Any) -> bool:
    a, b = tree.leaves(one), tree.leaves(other)
    return (
        type(one) is type(other)
        and list(a) == list(b)
        and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
    )


CLIENTS = 6
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, CLIENTS - 1), unique=True, max_size=4)),
        st.tuples(st.just("get"), st.lists(st.integers(0, CLIENTS - 1), max_size=4)),
        st.tuples(st.just("settle"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=14,
)


@given(actions=ACTIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_plain_dict(actions):
    """``safe`` is what a checkpoint holds, ``now`` what the run sees."""
    safe: dict[int, int] = {}
    now: dict[int, int] = {}
    count = settled = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deep" / "clients"
        store = DiskStore(state, folder, CLIENTS)
        for action, value in actions:
            if action == "put":
                made = []
                for client in value:
                    count += 1
                    now[client] = count
                    made.append(state(count))
                store.put(value, made)
                for given_state in made:  # a store keeps copies
                    given_state.count.fill_(7.0)
            elif action == "get":
                for client, found in zip(value, store.get(value), strict=True):
                    assert same(found, state(now.get(client, 0)))
            elif action == "settle":
                settled += 1
                store.settle(settled)
                assert store.pending == {}
                safe = dict(now)
            elif action == "reopen":
                store = DiskStore(state, folder, CLIENTS)
                now = dict(safe)
            else:
                store = DiskStore(state, folder, CLIENTS)
                store.restart(0 if value else settled)
                if value:
                    safe, settled = {}, 0
                now = dict(safe)
            for client in range(CLIENTS):
                assert same(*store.get([client]), state(now.get(client, 0)))


def blocks_of(folder: Path) -> int:
    """Disk blocks of 512 bytes that are really taken."""
    return sum(path.stat().st_blocks for path in folder.iterdir())


def big(value: float = 0.0) -> dict[str, Tensor]:
    return {"w": torch.full((250,), value)}


def test_a_million_clients_take_no_room(tmp_path):
    """A gigabyte of records, of which six are written; a record may touch two pages, each page 8 blocks."""
    touched = [0, 1, 499_999, 500_000, 999_998, 999_999]
    store = DiskStore(big, tmp_path / "c", 1_000_000)
    assert (tmp_path / "c" / "states.bin").stat().st_size == 10**9
    before = blocks_of(tmp_path / "c")
    store.put(touched, [big(float(c + 1)) for c in touched])
    store.settle(1)
    again = DiskStore(big, tmp_path / "c", 1_000_000)
    again.restart(1)
    assert torch.equal(torch.stack([s["w"][0] for s in again.get(touched)]), torch.tensor(touched).float() + 1)
    assert same(*again.get([500_001]), big())
    taken = blocks_of(tmp_path / "c")
    # 12 pages of records, 6 of marks, two small notes; page sizes up to 16 KiB are allowed for.
    assert taken - before <= 20 * 32, (before, taken)
    assert before <= 4 * 32


def test_no_record_leaks_into_its_neighbours(tmp_path):
    store = DiskStore(state, tmp_path / "c", 50)
    store.put(range(1, 50, 3), [state(c) for c in range(1, 50, 3)])
    store.settle(1)
    store.put([4], [state(400)])
    store.settle(2)
    for client in range(50):
        wanted = state(400) if client == 4 else state(client) if client % 3 == 1 else state()
        assert same(*store.get([client]), wanted), client
    # Byte by byte: the records of those never asked are zeros.
    raw = (tmp_path / "c" / "states.bin").read_bytes()
    record = len(raw) // 50
    assert all(not any(raw[c * record : (c + 1) * record]) for c in range(50) if c % 3 != 1)


def test_what_is_read_may_be_changed_without_changing_the_store(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([1], [state(5)])
    store.settle(1)
    (found,) = store.get([1])
    for leaf in tree.leaves(found).values():
        leaf.zero_()
    assert same(*store.get([1]), state(5))
    assert same(*DiskStore(state, tmp_path / "c", 3).get([1]), state(5))


def test_restart(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    store.restart(0)
    store.put([1], [state(5)])
    store.settle(2)
    for round in (2, 3):  # the checkpoint of a later round holds what it changed itself
        again = DiskStore(state, tmp_path / "c", 3)
        again.restart(round)
        assert same(*again.get([1]), state(5))
    again = DiskStore(state, tmp_path / "c", 3)
    text = refused(lambda: again.restart(1), r"of round 1.*round 2")
    assert "start the run again" in text
    again.restart(0)  # no checkpoint: the run begins anew, and so do its clients
    assert same(*again.get([1]), state())
    assert same(*DiskStore(state, tmp_path / "c", 3).get([1]), state())


def test_settling_twice_does_no_harm(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    for _ in range(2):
        store.put([2], [state(9)])
        store.settle(1)
    assert same(*DiskStore(state, tmp_path / "c", 3).get([2]), state(9))


@pytest.mark.parametrize(
    "other",
    [
        lambda: State({"a": torch.zeros(4)}, torch.zeros(1, 1)),
        lambda: state()._replace(count=torch.zeros(1, 1, dtype=torch.float64)),
        lambda: state()._replace(count=torch.zeros(1)),
        lambda: {"w": torch.zeros(3)},
    ],
    ids=["leaves", "type", "shape", "tree"],
)
def test_another_layout_is_refused(tmp_path, other):
    DiskStore(state, tmp_path / "c", 3)
    refused(
        lambda: DiskStore(other, tmp_path / "c", 3), r"^`clients` must be states of this model and data, got others"
    )


def test_another_population_is_refused(tmp_path):
    DiskStore(state, tmp_path / "c", 3)
    refused(lambda: DiskStore(state, tmp_path / "c", 4), "states of this model and data")


@pytest.mark.parametrize("name", ["states.bin", "present.bin"])
@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "gone"])
def test_a_file_of_another_length_is_refused(tmp_path, name, change):
    DiskStore(state, tmp_path / "c", 3)
    file = tmp_path / "c" / name
    size = file.stat().st_size
    if change == "gone":
        file.unlink()
    else:
        os.truncate(file, {"shorter": size - 1, "longer": size + 1, "empty": 0}[change])
    refused(lambda: DiskStore(state, tmp_path / "c", 3), f"whole .{size} bytes of {name}")


@pytest.mark.parametrize("content", ["", "{", "null"])
def test_a_broken_layout_is_refused(tmp_path, content):
    DiskStore(state, tmp_path / "c", 3)
    (tmp_path / "c" / "layout.json").write_text(content)
    refused(lambda: DiskStore(state, tmp_path / "c", 3), "clients")


@pytest.mark.parametrize("content", ["", "two", "1.5"])
def test_a_broken_note_of_the_round_is_refused(tmp_path, content):
    """It is not flushed when it is written, so a power cut may leave it empty."""
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([0], [state(1)])
    store.settle(1)
    (tmp_path / "c" / "settled").write_text(content)
    refused(lambda: DiskStore(state, tmp_path / "c", 3).restart(1), "clients")


def test_a_folder_that_was_cut_off_while_being_made_is_made_anew(tmp_path):
    DiskStore(state, tmp_path / "c", 3)
    (tmp_path / "c" / "layout.json").unlink()
    os.truncate(tmp_path / "c" / "states.bin", 1)
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([2], [state(1)])
    store.settle(1)
    assert same(*store.get([2]), state(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int32], ids=str)
def test_other_types(tmp_path, dtype):
    def first() -> dict[str, Tensor]:
        return {"w": torch.zeros(3, dtype=dtype)}

    store = DiskStore(first, tmp_path / "c", 2)
    store.put([1], [{"w": torch.tensor([1, 2, 3], dtype=dtype)}])
    store.settle(1)
    assert store.get([1])[0]["w"].tolist() == [1, 2, 3]
    assert store.get([1])[0]["w"].dtype == dtype


def test_a_leaf_without_elements(tmp_path):
    def first() -> dict[str, Tensor]:
        return {"none": torch.zeros(0, 3), "one": torch.zeros(1)}

    store = DiskStore(first, tmp_path / "c", 2)
    store.put([1], [{"none": torch.zeros(0, 3), "one": torch.ones(1)}])
    store.settle(1)
    (found,) = store.get([1])
    assert found["none"].shape == (0, 3)
    assert found["one"].item() == 1


def test_a_leaf_that_is_not_contiguous(tmp_path):
    wide = torch.arange(12.0).reshape(3, 4)
    store = DiskStore(lambda: {"w": torch.zeros(4, 3)}, tmp_path / "c", 2)
    store.put([1], [{"w": wide.T}])
    store.settle(1)
    assert torch.equal(store.get([1])[0]["w"], wide.T)


def test_stores_that_are_gone_hold_no_files_open(tmp_path):
    """A sweep over a thousand runs in one process must not run out of file handles."""
    DiskStore(state, tmp_path / "c", 3)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        DiskStore(state, tmp_path / "c", 3)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_memory():
    store = Store(state)
    store.put([3], [state(3)])
    store.settle(1)
    assert same(*store.get([3]), state(3))
    assert same(*store.get([0]), state())
    assert set(store.pending) == {3}


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_store_keeps_copies(place, tmp_path):
    store = Store(state) if place == "memory" else DiskStore(state, tmp_path / "c", 5)
    given_state = state(3)
    store.put([3], [given_state])
    for leaf in tree.leaves(given_state).values():
        leaf.zero_()
    assert same(*store.get([3]), state(3))
    store.settle(1)
    assert same(*store.get([3]), state(3))


# Who is asked.


def test_a_cohort_is_distinct_ascending_and_the_same_again():
    for clients, cohort in ((10, 3), (10, 9), (1, 1), (7, 7), (1_000_000, 1000), (20_000, 10), (20_000, 5000)):
        for round in (-1, 0, 5):
            found = uniform_cohort(clients, cohort, seed=3, round=round)
            assert len(found) == cohort
            assert (np.diff(found) > 0).all()
            assert found[0] >= 0
            assert found[-1] < clients
            assert np.array_equal(found, uniform_cohort(clients, cohort, seed=3, round=round))
    assert not np.array_equal(uniform_cohort(10**6, 50, seed=3, round=0), uniform_cohort(10**6, 50, seed=3, round=1))
    assert not np.array_equal(uniform_cohort(10**6, 50, seed=3, round=0), uniform_cohort(10**6, 50, seed=4, round=0))


@pytest.mark.parametrize(("clients", "cohort"), [(12, 3), (12, 11), (12, 1)])
def test_every_client_is_asked_equally_often(clients, cohort):
    """Counts over rounds; sampling without replacement makes their spread (1 - f) n/(n - 1) that of the multinomial.

    The chi-square statistic divided by that factor has clients - 1 degrees of freedom; false alarm 1e-9.
    """
    rounds = 4000
    counts = np.zeros(clients)
    for t in range(rounds):
        counts[uniform_cohort(clients, cohort, seed=0, round=t)] += 1
    wanted = rounds * cohort / clients
    factor = (1 - cohort / clients) * clients / (clients - 1)
    statistic = ((counts - wanted) ** 2).sum() / wanted / factor
    assert statistic < stats.chi2.ppf(1 - 1e-9, clients - 1)
    assert statistic > stats.chi2.ppf(1e-9, clients - 1)


def test_every_pair_is_asked_equally_often():
    """Of 5 clients 2: ten pairs, 3000 draws; false alarm 1e-9."""
    counts: dict[tuple[int, ...], int] = {}
    for t in range(3000):
        pair = tuple(uniform_cohort(5, 2, seed=1, round=t).tolist())
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10
    assert stats.chisquare(list(counts.values())).pvalue > 1e-9


def test_a_million_clients_are_asked_uniformly():
    """The cohort of 200 in 500 rounds, in 50 bins of 20,000 clients; false alarm 1e-9."""
    found = np.concatenate([uniform_cohort(10**6, 200, seed=2, round=t) for t in range(500)])
    counts = np.bincount(found // 20_000, minlength=50)
    assert stats.chisquare(counts).pvalue > 1e-9
    assert stats.kstest(found / 10**6, "uniform").pvalue > 1e-9
