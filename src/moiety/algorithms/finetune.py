"""Finetuning: every client trains its personal parameters with the shared ones fixed; nothing is sent.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022:
step (c) of the pipeline of appendix B.2. With split ``everything`` it is the baseline "Finetune", with any other "FT
(part.)" of Table 4. All start from a model trained by FedAvg, which is the model given to ``fit``.

Symbols: w, the shared parameters, ``received``; v_k ``state.personal``; number of epochs (Table 9: 5) ``epochs``;
client learning rate of local finetuning ``lr``.

Reduces to local training from the given model where everything is personal, and is FedAlt without its lines 6 to 9.

Deviations from the paper:

1. The paper finetunes every client once, after training. Here a round does it for the clients of its cohort, and one
   that is asked again goes on from where it was; one round with all clients is the paper's.
2. Options the paper does not use here, all off by default: momentum, weight decay, clipping (which appendix B.3 has for
   training), schedules.
3. A client whose result is not finite keeps the state that it had.
4. Running statistics of BatchNorm, which the paper does not have, move with the training where they are personal;
   shared ones stay as the server has them.
"""

from __future__ import annotations

from typing import NamedTuple

from moiety.local import SgdOptions, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import weighted_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, Work


class Server(NamedTuple):
    """w, which never moves, with its running statistics."""

    shared: Params


class Client(NamedTuple):
    """v_k, the personal parameters (and personal running statistics)."""

    personal: Params


@recorded
def finetune(
    *,
    lr: float,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Finetuning: personal parameters alone, the shared ones fixed (Pillutla et al. 2022).

    Args:
        lr: learning rate of the personal parameters.
        epochs: passes over the client's data each time it is asked; 1 where neither this nor the next is given.
        steps: or a number of steps.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty on the personal parameters.
        momentum: of the client's SGD, from 0 in each round.
        clip: largest gradient norm of the personal parameters.
        schedule: of the learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    options = SgdOptions(momentum, weight_decay, clip)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        # v_k <- v_k - lr grad_v F_k(w, v_k)
        model, loss = sgd(work, model, work.batches("local"), lr=rates(work, work.personal, lr), options=options)
        return ClientUpdate({}, work.examples, {"loss": loss}), Client(work.parts(model)[1])

    return Algorithm(
        name="finetune",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=lambda shared, statistics: Server({**shared, **statistics}),
        init_client=lambda shared, personal: Client(personal),
        broadcast=lambda server: dict(server.shared),
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=lambda server, change: server,
        personal_model=lambda received, state: (received, state.personal),
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(schedule),
        needs="personal",
        uploads=False,
    )
