"""Finetuning: every client trains its personal parameters with the shared ones fixed; nothing is sent.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022:
step (c) of the pipeline of appendix B.2. With split ``everything`` it is the baseline "Finetune", with any other "FT
(part.)" of Table 4. All start from a model trained by FedAvg, which is the model given to ``fit``.

Symbols: w, the shared parameters, what is received; v_k ``state.personal``; number of epochs (Table 9: 5) and client
learning rate of local finetuning those of ``personal``.

Reduces to local training from the given model where everything is personal, and is FedAlt without its lines 6 to 9.

Deviations from the paper:

1. The paper finetunes every client once, after training. Here a round finetunes the clients of its cohort, and a client
   that takes part again continues from its last values. One round with all clients is the paper's step.
2. Options that the paper does not use here, all off by default: momentum, weight decay, clipping (which appendix B.3
   has for training), schedules, a random start (as in FFGG, whose clients keep nothing).
3. A client whose result is not finite keeps its earlier state.
4. Running statistics of BatchNorm, which the paper does not have, move in training if they are personal. Shared ones do
   not move.
"""

from __future__ import annotations

from moiety.local import Optimiser, Personal, begin_personal, check_start, continue_training, draw_start, optimiser_work
from moiety.server.averaging import assemble
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, Work


@recorded
def finetune(
    *, personal: float | Optimiser, random_start: int | str | None = None, schedule: Schedule | None = None
) -> Algorithm:
    """Finetuning: personal parameters alone, the shared ones fixed (Pillutla et al. 2022).

    Args:
        personal: local work on the personal parameters: the learning rate, or ``moiety.sgd(...)``.
        random_start: what a client starts from: ``fresh`` draws it anew for each client and turn, a seed draws it once
            for all; by default it is the client's own.
        schedule: of the learning rate across rounds; constant by default.
    """
    check_start(random_start)
    personal_optimiser = optimiser_work("personal", personal, without=("pull",))

    def client_update(work: Work, w: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        # v_k <- v_k - lr grad_v F_k(w, v_k)
        model = work.compose(w, draw_start(work, state.personal, random_start))
        parts = {work.personal: personal_optimiser}
        model, loss, memory = continue_training(work, model, work.batches("local"), parts, state.memory)
        return ClientUpdate({}, work.examples, {"loss": loss}), Personal(work.parts(model)[1], memory)

    return assemble(
        phases={"local": personal_optimiser.phase},
        init_client=begin_personal(personal_optimiser),
        client_update=client_update,
        aggregator=None,
        schedule=schedule,
    )
