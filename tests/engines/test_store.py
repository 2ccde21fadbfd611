"""Personal states on disk against a plain dict, and who is asked."""

from __future__ import annotations

import errno
import gc
import os
import shutil
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

import moiety as mo
from moiety import tree
from moiety.clients import DiskStore, Store, bernoulli_cohort, uniform_cohort
from moiety.clients.records import sum_entries
from moiety.loop import round as loop_of_rounds


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


def settle(store: Store, round: int) -> tuple[Any, str]:
    """What a checkpoint does with a store; what the checkpoint holds."""
    changes = store.changes(round)
    digest = store.digest(changes)
    store.settle(changes)
    return changes, digest


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
    count = last_round = 0
    last: Any = ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "deep" / "clients"
        store = DiskStore(state, folder, CLIENTS)
        for action, value in actions:
            if action == "put":
                states = []
                for client in value:
                    count += 1
                    now[client] = count
                    states.append(state(count))
                store.put(value, states)
                for each in states:  # a store keeps copies
                    each.count.fill_(7.0)
            elif action == "get":
                for client, actual in zip(value, store.get(value), strict=True):
                    assert same(actual, state(now.get(client, 0)))
            elif action == "settle":
                last_round += 1
                last = settle(store, last_round)
                assert store.records.pending == {}
                safe = dict(now)
            elif action == "reopen":
                store = DiskStore(state, folder, CLIENTS)
                now = dict(safe)
            else:
                (shutil.rmtree(folder) if value else None)
                store = DiskStore(state, folder, CLIENTS)
                store.start_again() if value or not last_round else store.restart(last_round, *last)
                if value:
                    safe, last_round = {}, 0
                now = dict(safe)
            for client in range(CLIENTS):
                assert same(*store.get([client]), state(now.get(client, 0)))


def blocks_of(folder: Path) -> int:
    """Disk blocks of 512 bytes that are really taken."""
    return sum(path.stat().st_blocks for path in folder.iterdir())


def big(value: float = 0.0) -> dict[str, Tensor]:
    return {"w": torch.full((250,), value)}


def test_a_million_clients_take_no_room(tmp_path):
    """Two gigabytes of records, of which six are written; a record may touch two pages, each page 8 blocks."""
    clients = [0, 1, 499_999, 500_000, 999_998, 999_999]
    store = DiskStore(big, tmp_path / "c", 1_000_000)
    assert (tmp_path / "c" / "states.bin").stat().st_size == 2 * 10**9
    before = blocks_of(tmp_path / "c")
    store.put(clients, [big(float(c + 1)) for c in clients])
    checkpoint = settle(store, 1)
    again = DiskStore(big, tmp_path / "c", 1_000_000)
    again.restart(1, *checkpoint)
    assert torch.equal(torch.stack([s["w"][0] for s in again.get(clients)]), torch.tensor(clients).float() + 1)
    assert same(*again.get([500_001]), big())
    after = blocks_of(tmp_path / "c")
    # 12 pages of records, 6 of marks, two small notes; page sizes up to 16 KiB are allowed for.
    assert after - before <= 20 * 32, (before, after)
    assert before <= 4 * 32


def test_no_record_leaks_into_its_neighbours(tmp_path):
    store = DiskStore(state, tmp_path / "c", 50)
    store.put(range(1, 50, 3), [state(c) for c in range(1, 50, 3)])
    settle(store, 1)
    store.put([4], [state(400)])
    settle(store, 2)
    for client in range(50):
        expected = state(400) if client == 4 else state(client) if client % 3 == 1 else state()
        assert same(*store.get([client]), expected), client
    # Byte by byte: the records of those never asked are zeros.
    raw = (tmp_path / "c" / "states.bin").read_bytes()
    record = len(raw) // 50  # both slots
    assert all(not any(raw[c * record : (c + 1) * record]) for c in range(50) if c % 3 != 1)


def test_what_is_read_may_be_changed_without_changing_the_store(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([1], [state(5)])
    settle(store, 1)
    (copy,) = store.get([1])
    for leaf in tree.leaves(copy).values():
        leaf.zero_()
    assert same(*store.get([1]), state(5))
    assert same(*DiskStore(state, tmp_path / "c", 3).get([1]), state(5))


def test_restart(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    store.start_again()
    store.put([1], [state(5)])
    older = settle(store, 2)
    store.put([1, 2], [state(6), state(8)])
    newer = settle(store, 4)
    again = DiskStore(state, tmp_path / "c", 3)
    again.restart(4, *newer)
    assert same(*again.get([1]), state(6))
    refused(lambda: again.restart(2, *older), r"`clients` must be as the checkpoint of round 2.*another index")
    text = refused(again.start_again, r"`checkpoint` must be there, for clients has states of round 4")
    assert "to start again" in text


def test_first_states_are_put_anew_where_a_run_starts_again(tmp_path):
    """A kill before the first checkpoint: the states that clients began with count as of round 0."""
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([1], [state(5)])
    settle(store, 0)
    again = DiskStore(state, tmp_path / "c", 3)
    again.start_again()
    assert again.owners() == []
    assert same(*again.get([1]), state())


def test_a_kill_while_a_checkpoint_is_settled(tmp_path):
    """Of the entries of a checkpoint, any number may have reached the index."""
    for count in range(4):
        folder = tmp_path / str(count)
        store = DiskStore(state, folder, 3)
        store.put(range(3), [state(c) for c in range(3)])
        settle(store, 1)
        store.put(range(3), [state(10 + c) for c in range(3)])
        changes = store.changes(2)
        digest = store.digest(changes)
        store.settle(changes[:count])
        again = DiskStore(state, folder, 3)
        again.restart(2, changes, digest)
        assert all(same(*again.get([c]), state(10 + c)) for c in range(3))


def test_between_checkpoints_the_older_states_stay_on_disk(tmp_path):
    """States are written at once, to the other slot: what the last checkpoint needs is not touched, however often."""
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([0, 1], [state(1), state(2)])
    checkpoint = settle(store, 1)
    for turn in range(3):
        store.put([0, 2], [state(20 + turn), state(30 + turn)])
        assert same(*store.get([0]), state(20 + turn))
        again = DiskStore(state, tmp_path / "c", 3)
        again.restart(1, *checkpoint)
        assert [same(*again.get([c]), state(s)) for c, s in ((0, 1), (1, 2), (2, 0))] == [True] * 3
    assert len(store.states) == 0  # no copy in memory


@pytest.mark.parametrize("bit", range(0, 65 * 8, 13))
def test_every_flipped_bit_of_a_state_is_noticed(tmp_path, bit):
    store = DiskStore(state, tmp_path / "c", 2)
    store.put([1], [state(5)])
    settle(store, 1)
    raw = bytearray((tmp_path / "c" / "states.bin").read_bytes())
    raw[2 * 65 + bit // 8] ^= 1 << bit % 8
    (tmp_path / "c" / "states.bin").write_bytes(raw)
    refused(lambda: DiskStore(state, tmp_path / "c", 2).get([1]), "`states.bin` must be as it was written.*client 1")
    assert same(*DiskStore(state, tmp_path / "c", 2).get([0]), state())


def test_every_flipped_bit_of_the_index_is_noticed(tmp_path):
    store = DiskStore(state, tmp_path / "c", 4)
    store.put([1, 3], [state(5), state(6)])
    settle(store, 1)
    store.put([3], [state(7)])
    checkpoint = settle(store, 2)
    raw = (tmp_path / "c" / "index.bin").read_bytes()
    for bit in range(36 * 8):  # client 3's entry is the checkpoint's own, which is written again
        content = bytearray(raw)
        content[bit // 8] ^= 1 << bit % 8
        (tmp_path / "c" / "index.bin").write_bytes(content)
        refused(lambda: DiskStore(state, tmp_path / "c", 4).restart(2, *checkpoint), "another index")


def test_the_sum_of_an_index_by_hand():
    """One entry at a time, in whole numbers: SplitMix64's mixing of (client, slot), then of that and (round, check)."""

    def scramble(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    entries = [(0, 7, 1, 2**32 - 1), (5, 9, 2, 12345), (6, 0, 0, 0), (7, 1, 0, 3), (999_999, 2**31, 1, 0)]
    total = sum(scramble(scramble(c * 2**32 + s) ^ (r << 32 | k)) for c, r, s, k in entries if c != 6) % 2**64
    assert sum_entries(*zip(*entries, strict=True)) == total


def test_a_short_write_goes_on(tmp_path, monkeypatch):
    """``pwrite`` may write less than it was asked to, and only the next call says why."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, content, at: real(handle, content[:7], at))
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([2], [state(4)])
    settle(store, 1)
    assert same(*DiskStore(state, tmp_path / "c", 3).get([2]), state(4))


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    store = DiskStore(state, tmp_path / "c", 3)

    def full(handle, content, at):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    refused(lambda: store.put([2], [state(4)]), f"out.*{os.strerror(errno.ENOSPC)}")


def test_states_of_another_run_are_refused(tmp_path):
    DiskStore(state, tmp_path / "c", 3, "aaaa")
    refused(lambda: DiskStore(state, tmp_path / "c", 3, "bbbb"), "`layout.json` must be a file of run bbbb.*run aaaa")
    refused(lambda: DiskStore(state, tmp_path / "d", 3, "aaaa", resumed=True), "layout.json.*No such file")
    assert not (tmp_path / "d").exists()


def test_settling_twice_does_no_harm(tmp_path):
    store = DiskStore(state, tmp_path / "c", 3)
    for _ in range(2):
        store.put([2], [state(9)])
        settle(store, 1)
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


@pytest.mark.parametrize("name", ["states.bin", "index.bin"])
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


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"{}", b"[" * 100_000, b"\xff"], ids=["", "{", "null", "{}", "deep", "not UTF-8"]
)
def test_a_broken_layout_is_refused(tmp_path, content):
    DiskStore(state, tmp_path / "c", 3)
    (tmp_path / "c" / "layout.json").write_bytes(content)
    refused(lambda: DiskStore(state, tmp_path / "c", 3), "layout.json")


@pytest.mark.parametrize("client", [-1, 3, 2**40])
def test_a_client_that_the_run_does_not_have_is_refused(tmp_path, client):
    store = DiskStore(state, tmp_path / "c", 3)
    for call in (lambda: store.put([client], [state(1)]), lambda: store.get([client])):
        refused(call, f"`clients` must be those of a run with 3, got client {client} in")


def test_a_folder_that_was_cut_off_while_being_made_is_made_anew(tmp_path):
    DiskStore(state, tmp_path / "c", 3)
    (tmp_path / "c" / "layout.json").unlink()
    os.truncate(tmp_path / "c" / "states.bin", 1)
    store = DiskStore(state, tmp_path / "c", 3)
    store.put([2], [state(1)])
    settle(store, 1)
    assert same(*store.get([2]), state(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int32], ids=str)
def test_other_types(tmp_path, dtype):
    def first() -> dict[str, Tensor]:
        return {"w": torch.zeros(3, dtype=dtype)}

    store = DiskStore(first, tmp_path / "c", 2)
    store.put([1], [{"w": torch.tensor([1, 2, 3], dtype=dtype)}])
    settle(store, 1)
    assert store.get([1])[0]["w"].tolist() == [1, 2, 3]
    assert store.get([1])[0]["w"].dtype == dtype


def test_a_leaf_without_elements(tmp_path):
    def first() -> dict[str, Tensor]:
        return {"none": torch.zeros(0, 3), "one": torch.zeros(1)}

    store = DiskStore(first, tmp_path / "c", 2)
    store.put([1], [{"none": torch.zeros(0, 3), "one": torch.ones(1)}])
    settle(store, 1)
    (copy,) = store.get([1])
    assert copy["none"].shape == (0, 3)
    assert copy["one"].item() == 1


def test_a_leaf_that_is_not_contiguous(tmp_path):
    wide = torch.arange(12.0).reshape(3, 4)
    store = DiskStore(lambda: {"w": torch.zeros(4, 3)}, tmp_path / "c", 2)
    store.put([1], [{"w": wide.T}])
    settle(store, 1)
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
    settle(store, 1)
    assert same(*store.get([3]), state(3))
    assert same(*store.get([0]), state())
    assert store.owners() == [3]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_store_keeps_copies(place, tmp_path):
    store = Store(state) if place == "memory" else DiskStore(state, tmp_path / "c", 5)
    value = state(3)
    store.put([3], [value])
    for leaf in tree.leaves(value).values():
        leaf.zero_()
    assert same(*store.get([3]), state(3))
    settle(store, 1)
    assert same(*store.get([3]), state(3))


# Who is asked.


@pytest.mark.parametrize(("participation", "draw"), [("fixed", uniform_cohort), ("bernoulli", bernoulli_cohort)])
def test_a_run_asks_the_clients_of_each_round(participation, draw, monkeypatch):
    """Cohorts of two rounds are drawn at a time."""
    monkeypatch.setattr(loop_of_rounds, "DRAWN_AHEAD", 7)
    x, y = np.eye(6, dtype=np.float32), np.arange(6) % 2
    fed = mo.data.from_arrays({"x": x, "y": y}, client=np.arange(6), test=0.0)
    expected = [tuple(draw(6, 3, seed=5, round=t).tolist()) for t in range(7)]
    actual: list[tuple[int, ...]] = []
    mo.fit(
        mo.models.linear(6, 2),
        fed,
        mo.fedavg(shared=0.1),
        rounds=7,
        cohort=3,
        seed=5,
        engine="sequential",
        settings=mo.Settings(participation=participation),
        callbacks=[lambda run, record: actual.append(record.cohort)],
    )
    assert actual == expected


def test_a_cohort_is_distinct_ascending_and_the_same_again():
    for clients, cohort in ((10, 3), (10, 9), (1, 1), (7, 7), (1_000_000, 1000), (20_000, 10), (20_000, 5000)):
        for round in (-1, 0, 5):
            members = uniform_cohort(clients, cohort, seed=3, round=round)
            assert len(members) == cohort
            assert (np.diff(members) > 0).all()
            assert members[0] >= 0
            assert members[-1] < clients
            assert np.array_equal(members, uniform_cohort(clients, cohort, seed=3, round=round))
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
    mean = rounds * cohort / clients
    factor = (1 - cohort / clients) * clients / (clients - 1)
    statistic = ((counts - mean) ** 2).sum() / mean / factor
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
    members = np.concatenate([uniform_cohort(10**6, 200, seed=2, round=t) for t in range(500)])
    counts = np.bincount(members // 20_000, minlength=50)
    assert stats.chisquare(counts).pvalue > 1e-9
    assert stats.kstest(members / 10**6, "uniform").pvalue > 1e-9
