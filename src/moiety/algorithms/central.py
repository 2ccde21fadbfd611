"""Central: one model for all, by online descent at the server. A baseline of the Glocal paper.

"Global and Local Learning for Distributed Personalization", section 4: "the server performs SGD over all data from all
clients". In a round every client's next example gives a gradient at the server's model:

    w_{t+1} = P_D(w_t - eta sum_i lambda_i grad l_{i,t}(w_t))

Symbols: w what is received; eta and D the learning rate and radius of ``shared``; lambda_i ``weighting``.

Reduces to plain SGD with one client. It is ``glocal_sgd`` with nothing personal.

Deviations from the paper:

1. Clients send gradients, not examples, and the server takes one step along their sum. The paper's program (Vowpal
   Wabbit) may have taken a step after every example; the paper does not say.
2. A client's stream is its own rows, in repeated passes, each in a fresh order.
3. An aggregator (``moiety.Settings(aggregator=...)``) replaces the sum. Shared running statistics do not move.
"""

from __future__ import annotations

from moiety.local import Online, Personal, complete_gradient, gradient_at, online_work
from moiety.server.averaging import client_weights
from moiety.server.descent import assemble_descent
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Work


@recorded
def central(*, shared: float | Online, weighting: str = "uniform") -> Algorithm:
    """Online descent at the server on every client's next example: one model for all.

    Args:
        shared: the server's descent along the sum over clients: eta, or ``moiety.online(eta, radius=D)``.
        weighting: lambda_i: ``uniform`` is 1, ``examples`` N_i, ``batches`` ceil(N_i / batch_size).
    """
    server = online_work("shared", shared)
    weight = client_weights(weighting, server.rows)

    def client_update(work: Work, w: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model = work.compose(w, state.personal)
        batches = list(work.batches("online"))
        gradient, loss, buffers = gradient_at(work, model, work.shared, batches)
        # grad l_{i,t}(w_t), which the server sums: w_{t+1} = P_D(w_t - eta sum_i lambda_i grad l_{i,t}(w_t))
        upload = server.describe(work, model, complete_gradient(gradient, w), batches)
        statistics = {n: buffers.get(n, p) for n, p in state.personal.items()}
        return ClientUpdate(upload, weight(work), {"loss": loss}), Personal(statistics)

    return assemble_descent(server, client_update=client_update, default_split="nothing")
