"""An algorithm of one's own that tries each way past the guard, in every engine of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import federation, mlp
from safetensors import safe_open

import moiety as mo
from moiety.engines.arena import ALIGN
from moiety.errors import MoietyError
from moiety.loop.exchange import Exchange
from moiety.transport import PrivacyError
from moiety.types import Codec, Wire

FED = federation()
ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:sequential"])


def fit(algorithm: mo.Algorithm, engine: str = "sequential", **options: Any) -> mo.Run:
    model = mlp()
    return mo.fit(
        model, FED, algorithm, **{"split": mo.split.output_layer(model), "rounds": 1, "engine": engine, **options}
    )


def own(change: Any, **differences: Any) -> mo.Algorithm:
    """FedAlt with an update that is ``change(work, received, state, update, new state)``."""
    inner = mo.fedalt(shared=0.1, personal=0.1)

    def client_update(work, received, state):
        update, after = inner.client_update(work, received, state)
        return change(work, received, state, update, after), after

    return replace(inner, client_update=client_update, **differences)


def head(after: Any) -> torch.Tensor:
    """All personal numbers of a client, one after the other."""
    return torch.cat([p.reshape(-1) for p in after.personal.values()])


@ENGINES
@pytest.mark.parametrize(
    ("secret", "pattern"),
    [
        (lambda after: head(after), r"personal of shape \(\d+,\)"),
        (lambda after: next(iter(after.personal.values())), "personal of shape"),
    ],
    ids=["a vector", "a parameter"],
)
def test_info_holds_single_numbers(secret, pattern, engine):
    leak = own(lambda w, r, s, update, after: update._replace(info={**update.info, "personal": secret(after)}))
    with pytest.raises(PrivacyError, match=rf"^`info` and `weight` must be single numbers.*{pattern}.*round 1\)\.$"):
        fit(leak, engine)


@ENGINES
@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda update: None, "tuple of NoneType, Personal"),
        (lambda update: update._replace(upload=None), "upload of NoneType"),
        (lambda update: update._replace(upload=list(update.upload.values())), "upload of list"),
        (lambda update: update._replace(upload={"hidden1.weight": 1.0}), "hidden1.weight of float"),
        (lambda update: update._replace(weight=1.0), "weight of float"),
        (lambda update: update._replace(info={**update.info, "note": "a word"}), "note of str"),
        (lambda update: update._replace(info={**update.info, "note": {"loss": update.weight}}), "note of dict"),
    ],
)
def test_an_update_is_made_of_tensors(change, pattern, engine):
    with pytest.raises(MoietyError, match=rf"^`client_update` must give ClientUpdate\(.*, got {pattern}\.$"):
        fit(own(lambda w, r, s, update, after: change(update)), engine)


def test_info_holds_single_numbers_on_a_clock_too(tmp_path):
    leak = own(lambda w, r, s, update, after: update._replace(info={**update.info, "personal": head(after)}))
    for clock in (mo.clock.asynchronous(active=2), mo.clock.delayed(up=2)):
        with pytest.raises(PrivacyError, match="single numbers"):
            fit(leak, settings=mo.Settings(clock=clock), rounds=4)


def test_the_record_needs_a_loss():
    with pytest.raises(
        MoietyError, match=r"^`info` must be .* with a loss among them, got none \(client .*round 1\)\.$"
    ):
        fit(own(lambda w, r, s, update, after: update._replace(info={})))


@ENGINES
def test_an_upload_carries_nothing_but_itself(engine, monkeypatch):
    """Uploads are the first numbers of vectors that go on with the personal part; so are the loss and the weight.

    What arrives lies in memory that holds as many numbers as the uploads of the round have, and not one more (in memory
    that processes share, each number of an upload begins at a multiple of 64 bytes).
    """
    updates: list[Any] = []

    def receive(exchange, received, clients, results, t):
        updates.extend(update for update, _, _ in results)
        return Exchange.receive(exchange, received, clients, results, t)

    def views(work, received, state, update, after):
        def hide(p):
            return torch.cat([p.reshape(-1), head(after).to(p.dtype)])[: p.numel()].view(p.shape)

        upload = {name: hide(p) for name, p in update.upload.items()}
        return update._replace(upload=upload, weight=hide(update.weight), info={"loss": hide(update.info["loss"])})

    monkeypatch.setattr("moiety.loop.round.Exchange", type("Watched", (Exchange,), {"receive": receive}))
    fit(own(views), engine)
    assert len(updates) == len(FED)
    for update in updates:
        for x in [*update.upload.values(), update.weight, *update.info.values()]:
            size = x.numel() * x.element_size()
            most = {"sequential": size, "vectorised": len(FED) * size}.get(engine, len(FED) * -(-size // ALIGN) * ALIGN)
            assert x.untyped_storage().nbytes() <= most


@ENGINES
@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.add_(1.0),
        lambda p: p.detach().zero_(),
        lambda p: p.view(-1)[:1].fill_(7.0),
        lambda p: torch._foreach_mul_([p], 2.0),
    ],
    ids=["add_", "detach", "view", "foreach"],
)
def test_what_a_client_gets_is_not_written_to(write, engine):
    def trick(work, received, state, update, after):
        write(received["hidden1.weight"])
        return update

    with pytest.raises(
        MoietyError, match=r"^`algorithm` must be one that leaves .*a write in place \(client .*round 1\)"
    ):
        fit(own(trick), engine)


@ENGINES
@pytest.mark.parametrize("write", [lambda p: p.data.add_(1.0), lambda p: p.detach().numpy().fill(3.0)])
def test_no_write_at_all_reaches_the_server(write, engine):
    """PyTorch does not count these writes, so no error tells of them; but what is written is a copy."""
    inner = mo.fedalt(shared=0.1, personal=0.1)
    servers = []

    def client_update(work, received, state):
        update, after = inner.client_update(work, received, state)
        if engine != "vectorised":
            write(received["hidden1.weight"])
        return update._replace(upload={n: torch.zeros_like(p) for n, p in update.upload.items()}), after

    def server_update(server, aggregate, share):
        servers.append({n: p.clone() for n, p in server.shared.items()})
        return inner.server_update(server, aggregate, share)

    first = {n: p.detach().clone() for n, p in mlp().named_parameters()}
    run = fit(replace(inner, client_update=client_update, server_update=server_update), engine, rounds=2)
    for shared in (*servers, run.broadcast()):
        assert all(torch.equal(p, first[n]) for n, p in shared.items())


def test_a_state_is_not_written_to():
    """The first states of all clients are the same tensors: a write would reach the others."""

    def trick(work, received, state, update, after):
        next(iter(state.personal.values())).add_(1.0)
        return update

    with pytest.raises(MoietyError, match="write in place"):
        fit(own(trick))


def test_evaluation_does_not_write_to_the_server_either():
    inner = mo.fedalt(shared=0.1, personal=0.1)

    def personal_model(received, state):
        received["hidden1.weight"].data.zero_()
        return inner.personal_model(received, state)

    run, honest = fit(replace(inner, personal_model=personal_model)), fit(inner)
    run.parameters(0)
    for name, p in honest.broadcast().items():
        assert torch.equal(run.broadcast()[name], p)


@pytest.mark.parametrize("way", ["down", "up"])
def test_no_personal_name_is_declared(way, tmp_path):
    def layout(shared, personal):
        return (shared | personal, shared) if way == "down" else (shared, shared | personal)

    with pytest.raises(PrivacyError, match=rf"^`wire.layout` must be without .*, got head.bias in what goes {way}\."):
        fit(own(lambda w, r, s, update, after: update, wire=Wire(layout=layout)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@ENGINES
def test_weights_are_not_negative(engine):
    algorithm = own(lambda w, r, s, update, after: update._replace(weight=update.weight - 1e6))
    with pytest.raises(MoietyError, match=r"^`weight` must be >= 0, got -\d+ \(client .*, round 1\)\.$"):
        fit(algorithm, engine)


@ENGINES
def test_weights_are_not_all_zero_where_they_are_divided_by(engine):
    algorithm = own(lambda w, r, s, update, after: update._replace(weight=update.weight * 0))
    with pytest.raises(MoietyError, match=r"^`weight` must be above 0 for some client of a round, got a sum of 0\."):
        fit(algorithm, engine)


def test_weights_may_all_be_zero_where_nothing_is_divided():
    """A median counts clients alike."""
    algorithm = own(lambda w, r, s, update, after: update._replace(weight=update.weight * 0))
    run = fit(algorithm, settings=mo.Settings(aggregator=mo.aggregator.median()))
    assert run.history[-1]["train_loss"] > 0


def test_a_weight_that_is_not_finite_is_dropped_with_its_upload():
    algorithm = own(
        lambda w, r, s, update, after: update._replace(weight=torch.where(w.examples > 10, torch.nan, w.examples))
    )
    sizes = FED.sizes("train")
    large = {f"1:{FED.ids[i]}" for i in range(len(FED)) if sizes[i] > 10}
    assert 0 < len(large) < len(FED)
    assert set(fit(algorithm).history[-1]["dropped"]) == large


def test_a_codec_adds_no_tensor():
    adding = Codec(
        lambda upload, g: {**upload, "secret": torch.ones(3)}, lambda packed, like: {n: packed[n] for n in like}
    )
    settings = mo.Settings(codec=adding)
    with pytest.raises(
        PrivacyError, match=r"^`codec` must be one that adds no tensor .*, got secret \(client .*round 1\)\."
    ):
        fit(mo.fedalt(shared=0.1, personal=0.1), settings=settings)
    fit(mo.fedalt(shared=0.1, personal=0.1), settings=mo.Settings(codec=replace(adding, names=("secret",))))


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (lambda packed, like: {**packed, "secret": torch.ones(3)}, "secret too"),
        (lambda packed, like: {n: p[None] for n, p in packed.items()}, "of shape (1, "),
        (lambda packed, like: {n: p.double() for n, p in packed.items()}, "torch.float64"),
        (lambda packed, like: dict(list(packed.items())[1:]), "none named "),
    ],
)
def test_what_a_codec_gives_is_laid_out_as_the_upload(decode, text):
    settings = mo.Settings(codec=Codec(lambda upload, generator: dict(upload), decode))
    with pytest.raises(PrivacyError, match=r"^`upload after the codec` must be ") as error:
        fit(mo.fedalt(shared=0.1, personal=0.1), settings=settings)
    assert text in str(error.value)


def test_personal_values_in_a_shared_tensor_pass_no_check_can_see_them(tmp_path):
    """README says so. If this fails, the guard can do more than README says."""

    def write(work, received, state, update, after):
        numbers = head(after)
        upload = dict(update.upload)
        upload["hidden1.weight"] = numbers[: upload["hidden1.weight"].numel()].sum().expand_as(upload["hidden1.weight"])
        return update._replace(upload=upload)

    fit(own(write), out=tmp_path / "run")
    (file,) = (tmp_path / "run").glob("checkpoint/*/server.safetensors")
    with safe_open(file, framework="pt") as tensors:
        assert "shared/hidden1.weight" in tensors.keys()  # noqa: SIM118
