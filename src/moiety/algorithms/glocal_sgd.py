"""Glocal.SGD: a shared and a personal model predict together, learn online, and stay aligned under delay.

"Global and Local Learning for Distributed Personalization": Algorithm 3 (client) and Algorithm 4 (server); with
batches, appendix D; with Adagrad, footnote 5, or in the manner of Vowpal Wabbit, which the paper ran
(``rule="normalised"``); the two rules of section 3.2.1 as ``alignment``.

    client i, round t:  incur l_{i,t}(w^g_{t-a}, w_{i,t}); send its gradient in w^g; and, with r = a + b rounds to the
                        server and back,  w_{i,t+1} = P_D(w_{i,t} - eta_i grad^l_{i,t-r})
    server, round t:    w^g_{t+1} = P_D(w^g_t - eta sum_i lambda_i grad^g_{i,t-b})

where grad_{i,s} is the gradient of l_{i,s} at the pair (w^g_{s-a}, w_{i,s}) that predicted, for both sides.

Symbols: w^g what is received; w_i ``state.personal``; eta and eta_i the learning rates, D the radii of ``shared`` and
``personal``; lambda_i ``weighting``; the delays a (down) and b (up) are the clock's, tau each in the paper;
l_{i,t} is the next batch in a walk through the client's data, one example by default.

Reduces to joint SGD on the pair without delay: with one client to plain SGD on both parts, with nothing personal to SGD
at the server (``central``), with everything personal to SGD on each client (``independent``).

Deviations from the paper:

1. A client's stream is its own rows, in repeated passes, each in a fresh order. A client outside the cohort of a round
   sees no example in it, and the round does not count for the delay of its own step.
2. An aggregator (``moiety.Settings(aggregator=...)``) replaces the sum over clients; most give a mean.
3. The misaligned rule needs the gradient at the server's newest model when an upload arrives. The paper would send the
   example. Here the client computes it (``moiety.clock.delayed(at="arrival")``).
4. Running statistics, which the theory does not have: shared ones do not move; personal ones move in training.
5. A client whose update is not finite is left out of the round.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import choice, must, whole
from moiety.local import Online, complete_gradient, gradient_at, online_work, take_floats
from moiety.server.averaging import client_weights
from moiety.server.descent import assemble_descent
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Delay, Params, Work

ALIGNMENTS = ("aligned", "misaligned", "asymmetric")


class Client(NamedTuple):
    """w_i, its gradients of the rounds before (the latest first, a row each), and what the rule keeps."""

    personal: Params
    past: Params
    squares: Params


@recorded
def glocal_sgd(
    *,
    shared: float | Online,
    personal: float | Online,
    alignment: str = "aligned",
    longest_round_trip: int = 0,
    weighting: str = "uniform",
    weight_column: str | None = None,
) -> Algorithm:
    """Glocal.SGD: joint online descent on a shared and a personal part, under delay.

    A round is one batch of every client: train for ``passes * ceil(n / batch_size)`` rounds. The server steps along the
    sum over clients, not the mean, so the rate of ``shared`` is for that sum.

    Args:
        shared: the server's descent: eta, or ``moiety.online(eta, rule="adagrad", radius=D)``. Its batches (appendix D)
            are those of both parts. ``rule="normalised"`` is Vowpal Wabbit's, for both parts or for one.
        personal: the clients' descent: eta_i, or ``moiety.online(eta_i, ...)``.
        alignment: ``aligned`` (the paper's algorithm: a client makes its own step one round trip late, as the server
            does), ``asymmetric`` (at once) or ``misaligned`` (at once, and the server takes gradients at its newest
            model, for a clock with ``at="arrival"``).
        longest_round_trip: with ``aligned``, for how many rounds clients keep their gradients: the largest sum of a
            client's two delays. 0 where there is no delay.
        weighting: lambda_i: ``uniform`` is 1, ``examples`` N_i, ``batches`` ceil(N_i / batch_size).
        weight_column: a column of the data that holds lambda_i in every row of client i, instead.
    """
    server = online_work("shared", shared)
    client = online_work("personal", personal, without=("steps", "batch_size", "shuffle"))
    choice("alignment", alignment, ALIGNMENTS)
    whole("longest_round_trip", longest_round_trip, 0)
    aligned = alignment == "aligned"
    hint = f"With alignment {alignment} a client makes its own step at once."
    must(aligned or longest_round_trip == 0, "longest_round_trip", "left out", longest_round_trip, hint)
    weight = client_weights(weighting, server.rows)

    def init_client(shared: Params, personal: Params) -> Client:
        floats = take_floats(personal)
        layout = client.declare(floats) if longest_round_trip else {}
        past = {n: p.new_zeros((longest_round_trip, *p.shape)) for n, p in layout.items()}
        return Client(personal, past, client.init(floats))

    def client_update(work: Work, w_g: Params, state: Client) -> tuple[ClientUpdate, Client]:
        batches = list(work.batches("online"))
        # Both gradients at (w^g_{t-a}, w_{i,t}), the pair that incurs the loss
        model, names = work.compose(w_g, state.personal), (*work.shared, *work.personal)
        gradient, loss, buffers = gradient_at(work, model, names, batches)
        upload = server.describe(work, model, complete_gradient(gradient, w_g), batches)
        # w_{i,t+1} = P_D(w_{i,t} - eta_i grad^l_{i,t-r}); (4)
        due = client.describe(work, model, {n: gradient[n] for n in work.personal}, batches)
        past: Params = {}
        if longest_round_trip:
            due, past = delay_gradient(due, state.past, work.round_trip)
        point = {n: state.personal[n] for n in work.personal}
        w_i, squares = client.step(point, due, state.squares, work.scale)
        statistics = {n: buffers.get(n, p) for n, p in state.personal.items()}
        after = Client({**statistics, **w_i}, {**state.past, **past}, {**state.squares, **squares})
        lambda_i = weight(work) if weight_column is None else read_weight(batches[0], weight_column)
        return ClientUpdate(upload, lambda_i, {"loss": loss}), after

    return assemble_descent(
        server,  # w^g_{t+1} = P_D(w^g_t - eta sum_i lambda_i grad^g_{i,t-b}); (5)
        init_client=init_client,
        client_update=client_update,
        delay=Delay(longest_round_trip if aligned else None, "arrival" if alignment == "misaligned" else "dispatch"),
    )


def delay_gradient(gradient: Params, past: Params, trip: Tensor) -> tuple[Params, Params]:
    """The gradient of ``trip`` turns ago (0 before there was one), and the past with the newest in front."""
    windows = {n: torch.cat([g[None], past[n]]) for n, g in gradient.items()}
    due = {n: window.index_select(0, trip.reshape(1)).squeeze(0) for n, window in windows.items()}
    return due, {n: window[:-1] for n, window in windows.items()}


def read_weight(batch: Batch, column: str) -> Tensor:
    """lambda_i, which stands in every row of the client."""
    must(column in batch, "weight_column", "a column of the data", column)
    return batch[column].double().mean()
