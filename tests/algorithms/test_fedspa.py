"""FedSpa against NumPy, in its limits, its invariants, and its bill by hand."""

import numpy as np
import oracle_sparse as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, next_server, problem_of, serve, split_of
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety import tree
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.split.masks import layer_counts
from moiety.transport import pack
from moiety.transport.sparse import sparse_pack

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
SIZES = (7, 5, 9, 4)
SPLIT = split_of(["W", "V", "b"], sizes={"W": 20, "V": 15, "b": 3})


def numpy_of(params):
    return {name: p.numpy() for name, p in params.items()}


def states(run, clients=range(4)):
    return run._loop.progress.store.get(clients)


def linear_run(algorithm, engine="sequential", rounds=4, cohort=None):
    cohorts = []
    run = mo.fit(
        ref.task(),
        federated(ref.clients(SIZES)),
        algorithm,
        split=SPLIT,
        rounds=rounds,
        cohort=cohort,
        engine=engine,
        callbacks=[lambda run, record: cohorts.append(record.cohort)],
    )
    return run, cohorts


@ENGINES
@pytest.mark.parametrize("cohort", [4, 2])
@pytest.mark.parametrize("search", ["dst", "dst, pruned last", "rsm"])
def test_rounds_against_numpy(engine, cohort, search):
    """Every client's mask and personal model, and the dense server, after 4 rounds of 3 full-batch steps.

    Those who are not asked inherit their mask; the mean is over the whole cohort.
    """
    algorithm = mo.fedspa(
        shared=mo.sgd(0.1, steps=3, batch_size=9, weight_decay=0.05),
        density=0.5,
        search=search[:3],
        regrow_pruned=search == "dst",
        prune_rate=0.6,
        mask_seed=3,
    )
    run, cohorts = linear_run(algorithm, engine, cohort=cohort)
    first = numpy_of(algorithm.init_client(ref.task().init, {}).mask)
    assert sum(int(m.sum()) for m in first.values()) == 16  # half of 38, without 3 dense ones
    w, masks = ref.fedspa(
        numpy_of(ref.task().init),
        [first] * 4,
        ref.clients(SIZES),
        cohorts,
        lr=0.1,
        steps=3,
        rate=0.6,
        decay=0.05,
        search=search != "rsm",
        regrow_pruned=search == "dst",
    )
    participants = {k for cohort in cohorts for k in cohort}
    for name, p in run.shared_parameters().items():
        np.testing.assert_allclose(p.numpy(), w[name], atol=1e-12)
    for k, state in enumerate(states(run)):
        assert bool(state.asked) == (k in participants)
        for name, m in masks[k].items():
            assert np.array_equal(state.mask[name].numpy(), m), (k, name)
        model = ref.apply(w, masks[k])  # never asked: the first mask, line 3 of Algorithm 1
        for name, p in run.parameters(k).items():
            np.testing.assert_allclose(p.numpy(), model[name], atol=1e-12)
    moved = any((masks[k][n] != first[n]).any() for k in participants for n in first)
    assert moved == (search != "rsm")


def test_first_masks_follow_the_seed_of_the_run():
    """Without ``mask_seed`` the first masks are those of the run's seed; with one they are not moved by it."""
    data, net = federated(ref.clients(SIZES)), ref.task()

    def same(one, other):
        return all(torch.equal(mask, other[name]) for name, mask in one.items())

    def first_masks(seed, **keywords):
        options = {"split": SPLIT, "rounds": 1, "cohort": 1, "engine": "sequential"}
        algorithm = mo.fedspa(shared=0.1, search="rsm", **keywords)
        return states(mo.fit(net, data, algorithm, seed=seed, **options))[0].mask

    for seed in (0, 5):
        masks = mo.fedspa(shared=0.1, mask_seed=seed).init_client(net.init, {}).mask
        assert same(first_masks(seed), masks)
        assert same(first_masks(seed, mask_seed=3), first_masks(0, mask_seed=3))
    assert not same(first_masks(0), first_masks(5))


DATA = federated(image_clients((6, 13, 9)))


def mlp():
    return mo.models.mlp(4, 3, hidden=(6,), seed=2)


def mlp_run(algorithm, engine="sequential", rounds=3, **options):
    return mo.fit(mlp(), DATA, algorithm, **with_settings(rounds=rounds, engine=engine, **options))


@ENGINES
@pytest.mark.parametrize("search", ["dst", "rsm"])
def test_density_one_is_fedavg_bit_for_bit(engine, search):
    common = {"lr": 0.1, "epochs": 2, "batch_size": 4, "weight_decay": 0.01, "momentum": 0.5, "weighting": "uniform"}
    common["schedule"] = mo.schedule.geometric(factor=0.9)
    one = mlp_run(flat(mo.fedspa, density=1.0, search=search, **common), engine, cohort=2)
    other = mlp_run(flat(mo.fedavg, **common), engine, cohort=2)
    for name, p in one.shared_parameters().items():
        assert torch.equal(p, other.shared_parameters()[name])
        assert torch.equal(p, one.parameters(0)[name])
    assert [row["metric"] for row in one.clients] == [row["metric"] for row in other.clients]


class SubNetwork(nn.Module):
    """The network with some weights taken out: only what is active is a parameter."""

    def __init__(self, net, masks):
        super().__init__()
        self.net, self.masks = net, masks
        self.values = nn.ParameterDict(
            {
                n.replace(".", "_"): nn.Parameter(p.detach()[masks[n]] if n in masks else p.detach().clone())
                for n, p in net.named_parameters()
            }
        )

    def weights(self):
        parameters = {}
        for n, p in self.net.named_parameters():
            value = self.values[n.replace(".", "_")]
            parameters[n] = torch.zeros_like(p).masked_scatter(self.masks[n], value) if n in self.masks else value
        return parameters

    def forward(self, x):
        return torch.func.functional_call(self.net, self.weights(), (x,))


def test_rsm_with_equal_masks_is_fedavg_on_the_sub_network():
    """FedAvg by torch.optim on a network that has the active weights alone; what is outside stays as it was."""
    algorithm = mo.fedspa(
        shared=mo.sgd(0.2, epochs=2, batch_size=5, shuffle=False, weight_decay=0.1), density=0.6, search="rsm"
    )
    net = mlp().double()
    run = mo.fit(net, DATA, algorithm, rounds=3, engine="sequential")
    masks = algorithm.init_client({n: p.detach() for n, p in net.named_parameters()}, {}).mask
    server = SubNetwork(net, masks)
    for _ in range(3):
        ends = []
        for k in range(3):
            own = SubNetwork(net, masks)
            own.load_state_dict(server.state_dict())
            optimiser = torch.optim.SGD(own.values.parameters(), lr=0.2, weight_decay=0.1)
            columns = DATA.client(k)
            x, y = torch.tensor(columns["x"]).double(), torch.tensor(columns["y"])
            for _ in range(2):
                for at in range(0, len(y), 5):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(own(x[at : at + 5]), y[at : at + 5]).backward()
                    optimiser.step()
            ends.append(own.state_dict())
        server.load_state_dict({n: sum(e[n] for e in ends) / 3 for n in ends[0]})
    for name, p in server.weights().items():
        torch.testing.assert_close(run.parameters(1)[name], p.detach(), rtol=1e-10, atol=1e-12)
    for name, m in masks.items():
        assert torch.equal(run.shared_parameters()[name][~m], dict(net.named_parameters())[name].detach()[~m])


@pytest.mark.parametrize("masks", ["same", "different"])
@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_volume_is_constant_and_the_server_moves_only_on_the_union_of_masks(masks, regrow):
    """After every round, with 2 of 3 clients asked; 51 numbers, 0.4 of them are 20, of which 9 biases."""
    algorithm = mo.fedspa(shared=mo.sgd(0.3, batch_size=4), density=0.4, masks=masks, regrow=regrow)
    problem = problem_of(mo.task.from_module(mlp(), loss="cross_entropy"), DATA, mo.split.nothing(mlp()))
    server = problem.first_server(algorithm)
    states = [problem.first_state(algorithm) for _ in range(3)]
    volumes = {n: int(m.sum()) for n, m in states[0].mask.items()}
    assert sum(volumes.values()) == 11
    for t, cohort in enumerate([(0, 1), (1, 2), (0, 2), (0, 1)]):
        received = algorithm.broadcast(server)
        jobs = problem.make_jobs(algorithm.phases, cohort, [states[k] for k in cohort], "train", t, part="train")
        results = serve(Sequential, problem, algorithm.client_update, jobs, received, RoundInfo(t, elapsed=t / 3))
        # What a client sent is 0 outside the mask it worked with.
        begin = algorithm.sparsity.first_mask or (lambda key, received, state: state)
        client_masks = [begin(torch.tensor(job.key), received, job.state).mask for job in jobs]
        for mask, (update, _) in zip(client_masks, results, strict=True):
            assert all((update.upload[n][~m] == 0).all() for n, m in mask.items())
        server = next_server(algorithm, server, [u for u, _ in results], share=2 / 3)
        after = algorithm.broadcast(server)
        for name in volumes:
            union = torch.stack([mask[name] for mask in client_masks]).any(0)
            assert torch.equal(after[name][~union], received[name][~union])
        for k, (_, state) in zip(cohort, results, strict=True):
            assert {n: int(m.sum()) for n, m in state.mask.items()} == volumes
            states[k] = state
    assert any((states[0].mask[n] != states[1].mask[n]).any() for n in volumes)


def test_different_masks_are_drawn_by_each_client_and_kept():
    algorithm = mo.fedspa(shared=0.1, density=0.4, search="rsm", masks="different")
    one, three = (states(mlp_run(algorithm, rounds=r), range(3)) for r in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert all(torch.equal(m, b.mask[n]) for n, m in a.mask.items())
    assert any((one[0].mask[n] != one[1].mask[n]).any() for n in one[0].mask)
    same = states(mlp_run(mo.fedspa(shared=0.1, density=0.4, search="rsm")), range(3))
    assert all(torch.equal(m, same[1].mask[n]) for n, m in same[0].mask.items())


def test_a_client_that_was_never_asked_has_its_first_mask():
    """Algorithm 1, line 3: every client has one. It is the mask it works with when all are asked, which RSM keeps."""
    algorithm = mo.fedspa(shared=0.1, density=0.4, search="rsm", masks="different")
    everyone = states(mlp_run(algorithm, rounds=1), range(3))
    run = mlp_run(algorithm, rounds=1, cohort=1)
    assert len(run._loop.progress.store.owners()) == 1
    x, y = torch.tensor(DATA.columns["x"]), torch.tensor(DATA.columns["y"])
    bounds = np.cumsum([0, 6, 13, 9])
    for client, state in enumerate(everyone):
        model = {n: torch.where(state.mask[n], p, 0) if n in state.mask else p for n, p in run.broadcast().items()}
        assert all(torch.equal(p, run.parameters(client)[n]) for n, p in model.items())
        a, b = bounds[client : client + 2]
        hits = torch.func.functional_call(mlp(), model, (x[a:b],)).argmax(1) == y[a:b]
        assert run.clients[client]["metric"] == pytest.approx(float(hits.float().mean()))


def test_a_client_with_statistics_of_its_own_that_was_never_asked_has_its_first_mask():
    """It has a state from the run before, in which there is no mask yet."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    split = mo.split.nothing(net, running_stats="personal")
    options = {"split": split, "engine": "sequential"}
    before = mo.fit(net, DATA, mo.fedavg(shared=0.1), **with_settings(rounds=1, **options))
    algorithm = mo.fedspa(shared=0.1, density=0.6, search="rsm", masks="different")
    everyone = mo.fit(net, DATA, algorithm, **with_settings(rounds=1, start=before, **options))
    one = mo.fit(net, DATA, algorithm, **with_settings(rounds=1, cohort=1, start=before, **options))
    for client, state in enumerate(states(everyone, range(3))):
        for name, m in state.mask.items():
            assert torch.equal(one.parameters(client)[name] != 0, m & (one.broadcast()[name] != 0))


def test_a_new_mask_takes_the_dense_weights_of_the_server():
    """Section 4.2: what grows starts from the server's value, never from 0."""
    run = mlp_run(mo.fedspa(shared=mo.sgd(0.1, batch_size=4), density=0.4), rounds=1)
    (state,) = states(run, [0])
    first = (
        mo.fedspa(shared=0.1, density=0.4).init_client({n: p.detach() for n, p in mlp().named_parameters()}, {}).mask
    )
    additions = {n: m & ~first[n] for n, m in state.mask.items()}
    assert sum(int(g.sum()) for g in additions.values()) > 0
    for name, places in additions.items():
        assert torch.equal(run.parameters(0)[name][places], run.shared_parameters()[name][places])
        assert (run.parameters(0)[name][places] != 0).all()


@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_vectorised_is_sequential_with_ties(regrow):
    """All weights equal, and inputs that are 0 in most places: magnitudes and gradients tie everywhere."""
    net = mlp().double()
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.25)
    columns = image_clients((6, 13, 9, 1), dtype=np.float64)
    for client in columns:
        client["x"][:, 1:] = 0
    task, data = mo.task.from_module(net, loss="cross_entropy"), federated(columns)
    problem = problem_of(task, data, mo.split.nothing(net))
    algorithm = mo.fedspa(shared=mo.sgd(0.1, batch_size=4, steps=2), density=0.5, regrow=regrow)
    received = algorithm.broadcast(problem.first_server(algorithm))
    jobs = problem.make_jobs(algorithm.phases, range(4), [problem.first_state(algorithm)] * 4, "train", 0, part="train")
    one, other = (
        serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
        for engine in (Sequential, Vectorised)
    )
    for (_, a), (_, b) in zip(one, other, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(tree.values(a), tree.values(b), strict=True))


@ENGINES
def test_bytes_by_hand(engine):
    """51 numbers, half of them active are 26 (25.5 rounded up). A mask is told down in a client's first turn only, and

    up in every turn that changed it: in the last round the rate is 0, and nothing changes.
    """
    algorithm = mo.fedspa(shared=mo.sgd(0.1, batch_size=4), density=0.5)
    run = mlp_run(algorithm, engine, rounds=2)
    first = algorithm.init_client({n: p.detach() for n, p in mlp().named_parameters()}, {}).mask
    with_mask, without_mask = (
        len(pack(sparse_pack({n: p.detach() for n, p in mlp().named_parameters()}, first, mask_known=k)))
        for k in (False, True)
    )
    ledger = run.ledger
    assert ledger["down_values"] == ledger["up_values"] == 2 * 3 * 26 * 4
    assert with_mask > without_mask > 26 * 4
    assert ledger["down_payload"] == ledger["up_payload"] == 3 * with_mask + 3 * without_mask
    static = mlp_run(mo.fedspa(shared=0.1, density=0.5, search="rsm"), engine, rounds=2).ledger
    assert static["up_payload"] == 6 * without_mask


def test_the_sparse_codec_changes_no_number():
    algorithm = mo.fedspa(shared=mo.sgd(0.1, batch_size=4), density=0.3)
    one, other = (mlp_run(algorithm, codec=codec) for codec in (None, mo.codec.sparse()))
    assert all(torch.equal(p, other.shared_parameters()[n]) for n, p in one.shared_parameters().items())
    assert other.ledger["down_payload"] == one.ledger["down_payload"]


def test_a_codec_does_not_hide_new_masks():
    """Whatever packs the values: 3 clients find a new mask in the first of two rounds, none in the last."""
    weights = {n: p.detach() for n, p in mlp().named_parameters()}
    mask = mo.fedspa(shared=0.1).init_client(weights, {}).mask
    with_mask, without_mask = (len(pack(sparse_pack(weights, mask, mask_known=known))) for known in (False, True))
    dst, rsm = (
        mlp_run(mo.fedspa(shared=mo.sgd(0.1, batch_size=4), search=s), rounds=2, codec=mo.codec.qsgd(levels=7)).ledger
        for s in ("dst", "rsm")
    )
    assert dst["up_payload"] - rsm["up_payload"] == 3 * (with_mask - without_mask)
    assert dst["up_values"] == rsm["up_values"]


class Bare(nn.Module):
    """A weight of the model's own, and a layer after it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(x @ self.w))


def test_flops_of_a_weight_that_no_layer_owns():
    """As in the test by hand below, without the 6 biases of the first layer: 45 numbers, half of them 23, 20 weights.

    Shares 20 * 24/42 = 11.43 and 8.57, so 11 and 9; per row 96 of the first weight, 108 of the head.
    """
    options = {"lr": 0.1, "density": 0.5, "densities": "uniform", "batch_size": 4, "search": "rsm"}
    ledger = mo.fit(Bare(), DATA, flat(mo.fedspa, **options), rounds=2, engine="sequential").ledger
    assert ledger["flops"] == pytest.approx(2 * 28 * (96 * 11 / 24 + 108 * 9 / 18))


class Branches(nn.Module):
    """Layers in a list, which is never called itself, side by side, one of them twice; and a weight of the model's."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 5))
        self.rows = nn.ModuleList([nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)])
        self.head = nn.Linear(5, 3, bias=False)

    def forward(self, x):
        x = x @ self.w
        return self.head(self.rows[0](self.rows[0](x)) + self.rows[1](x))


def test_flops_of_branches_by_hand():
    """Per row, forward: w 40, each use of a row 50, the head 30; with backward w 80, the others three times as much.

    85 weights, half of them 43 (42.5 upwards); ``uniform`` shares 43 * 20/85 = 10.12, 12.65, 12.65 and 7.59, so 10, 13,
    13 and 7 (the remainders .65, .65 and .59 get what is left, 3).
    """
    options = {"lr": 0.01, "density": 0.5, "densities": "uniform", "batch_size": 4, "search": "rsm"}
    counts = layer_counts(dict(Branches().named_parameters()), 0.5, "uniform")
    assert list(counts.values()) == [10, 13, 13, 7]
    ledger = mo.fit(Branches(), DATA, flat(mo.fedspa, **options), rounds=2, engine="sequential").ledger
    row = 80 * 10 / 20 + 3 * (100 + 50) * 13 / 25 + 90 * 7 / 15
    assert ledger["flops"] == pytest.approx(2 * 28 * row)


class Attending(nn.Module):
    """Attention, in which one call serves two masked weights."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x[:, None]
        return self.head(self.attention(x, x, x, need_weights=False)[0][:, 0])


def test_what_cannot_be_told_apart_counts_as_dense():
    """The head alone is sparse: 24 per row forward, 48 backward."""
    options = {"lr": 0.1, "densities": "uniform", "batch_size": 4, "search": "rsm"}
    half, dense = (
        mo.fit(Attending(), DATA, flat(mo.fedspa, density=d, **options), rounds=1, engine="sequential").ledger["flops"]
        for d in (0.6, 1.0)
    )
    counts = layer_counts(dict(Attending().named_parameters()), 0.6, "uniform")
    assert counts["attention.in_proj_weight"] < 48
    assert dense - half == pytest.approx(28 * 72 * (1 - counts["head.weight"] / 12))


@ENGINES
def test_flops_by_hand(engine):
    """4 -> 6 -> 3, per row: forward 48 and 36; backward 48 for the first weight, 36 + 36 for the head.

    ``uniform``: 26 active numbers are 17 weights, of 24 and 18: shares 17 * 24/42 = 9.71 and 7.29, so 10 and 7. The
    search is one dense batch of 4 rows for each of 3 clients and 2 rounds; 28 rows of training in each round.
    """
    options = {"lr": 0.1, "density": 0.5, "densities": "uniform", "batch_size": 4}
    first, head = 96, 108
    search = 2 * 3 * 4 * (first + head)
    training = 2 * 28 * (first * 10 / 24 + head * 7 / 18)
    ledger = mlp_run(flat(mo.fedspa, **options), engine, rounds=2).ledger
    assert ledger["search_flops"] == search
    assert ledger["flops"] == pytest.approx(search + training)
    static = mlp_run(flat(mo.fedspa, search="rsm", epochs=2, **options), engine, rounds=2).ledger
    assert static["search_flops"] == 0
    assert static["flops"] == pytest.approx(2 * training)


def test_search_is_counted_again_where_uploads_are_computed_on_arrival():
    """Every turn is then worked twice: the search, of 4 rows for each of 3 clients and 2 rounds, and the rest."""
    options = {"lr": 0.1, "density": 0.5, "densities": "uniform", "batch_size": 4}
    plain, late = (
        mlp_run(flat(mo.fedspa, **options), rounds=2, clock=clock).ledger
        for clock in (None, mo.clock.delayed(at="arrival"))
    )
    assert late["search_flops"] == 2 * (2 * 3 * 4 * (96 + 108))
    assert late["flops"] == pytest.approx(2 * plain["flops"])


def test_the_dense_model_is_the_shared_one():
    """The shared model alone is the server's, dense; a client's is masked."""
    run = mlp_run(mo.fedspa(shared=mo.sgd(0.3, batch_size=4), density=0.3), rounds=5)
    dense = mlp()
    dense.load_state_dict(run.shared_parameters())
    hits = (dense(torch.tensor(DATA.columns["x"])).argmax(1) == torch.tensor(DATA.columns["y"])).float()
    bounds = np.cumsum([0, 6, 13, 9])
    for row, a, b in zip(run.clients, bounds, bounds[1:], strict=False):
        assert row["shared_metric"] == pytest.approx(float(hits[a:b].mean()))


def test_onboarding_gives_a_sparse_model():
    run = mlp_run(mo.fedspa(shared=0.1, density=0.4, masks="different"))
    columns = DATA.client(1)
    model = run.onboard({k: columns[k] for k in ("x", "y")})
    parameters = dict(model.named_parameters()) if isinstance(model, nn.Module) else model
    assert sum(int((p == 0).sum()) for p in parameters.values()) >= 51 - 20


def test_resumed_bit_for_bit(tmp_path):
    algorithm = mo.fedspa(shared=mo.sgd(0.1, batch_size=4), density=0.4, masks="different")
    whole = mlp_run(algorithm, rounds=4, out=tmp_path / "whole", evaluate_every=2)
    other = tmp_path / "cut"

    def stop(run, record):
        if record.round == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        mlp_run(algorithm, rounds=4, out=other, evaluate_every=2, callbacks=[stop])
    resumed = mo.resume(other, data=DATA)
    for client in range(3):
        for name, p in whole.parameters(client).items():
            assert torch.equal(p, resumed.parameters(client)[name])
    assert whole.ledger == resumed.ledger


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"density": 0.0}, "`density` must be > 0 and <= 1, got 0.0."),
        ({"density": 1.5}, "`density` must be > 0 and <= 1"),
        ({"regrow_pruned": 1}, "`regrow_pruned` must be true or false"),
        ({"search": "dts"}, "`search` must be one of the known names, got 'dts'. Known: dst, rsm."),
        ({"densities": "erdos"}, "`densities` must be one of"),
        ({"masks": "equal"}, "`masks` must be one of"),
        ({"regrow": "no"}, "`regrow` must be one of"),
        ({"prune_rate": 1.5}, "`prune_rate` must be >= 0 and <= 1, got 1.5."),
        ({"mask_seed": -1}, "`mask_seed` must be >= 0, got -1."),
    ],
)
def test_bad_options_are_one_line(options, text):
    with pytest.raises(MoietyError) as error:
        flat(mo.fedspa, lr=0.1, **options)
    assert str(error.value).startswith(text)


def test_a_model_of_vectors_cannot_be_sparse():
    with pytest.raises(MoietyError, match=r"`density` must be >= .* for this model"):
        mo.fedspa(shared=0.1, density=0.5).init_client({"u": torch.zeros(4)}, {})
