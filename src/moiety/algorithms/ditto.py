"""Ditto: a shared model by FedAvg, and for each client a whole model of its own that is pulled towards it.

Li, Hu, Beirami, Smith. "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. Algorithm 1,
with FedAvg for its global part, as in Algorithm 2: form ``joint``. In Pillutla et al. 2022, appendix B.2, Ditto is
finetuning with an l2 penalty towards a model trained by FedAvg, which stays as it is: form ``finetune``.

Client k minimises h_k(v; w) = F_k(v) + (lambda / 2) ||v - w||^2 by v <- v - eta (grad F_k(v) + lambda (v - w^t)).

Symbols: w^t what is received; v_k ``state.shared``; lambda ``personal.pull``; eta and s the learning rate and length of
``personal``; eta and the local iterations on w those of ``shared``; S_t the cohort.

Reduces to local training where the pull is 0, and to FedAvg (v = w) as it grows with ``personal.lr`` below 2 / pull.

Deviations from the paper:

1. w and v may have different learning rates and numbers of steps, and each has its own shuffle. The authors' program
   takes the two steps in turn, on the same batches. Samples are drawn without replacement.
2. The server's optimiser moves w by the mean change, weighted by examples. For the unweighted mean of Algorithm 2, set
   ``weighting="uniform"``. ``moiety.Settings(aggregator=...)`` gives robust aggregators.
3. lambda is one number for all clients. The penalty in appendix B.2 of Pillutla et al. has no factor 1/2 (their
   equation (2) has it), so ``pull`` is twice the lambda of that appendix.
4. v_k starts at w^0. A client that never took part is evaluated with the shared model. A new client starts from the w
   it receives, at the full learning rate.
5. Options that the pseudocode does not have, all off by default: momentum, weight decay, clipping (of the gradient of
   F_k, before the pull is added), schedules. A client whose update is not finite is left out of the round.
6. In form ``finetune`` each round finetunes the clients of its cohort. One round with all clients is appendix B.2.
7. The paper has no running statistics of BatchNorm. If they are personal, they are those of v_k.
"""

from __future__ import annotations

from torch import Tensor

from moiety.errors import choice, must
from moiety.local import (
    Optimiser,
    OwnModel,
    begin_own_model,
    difference,
    keep_own_model,
    optimiser_work,
    own_model,
    train,
)
from moiety.server.averaging import assemble, client_weights
from moiety.server.mean import weighted_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work

FORMS = ("joint", "finetune")


@recorded
def ditto(
    *,
    personal: float | Optimiser,
    shared: float | Optimiser | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    form: str = "joint",
) -> Algorithm:
    """Ditto: FedAvg, and whole personal models pulled towards it (Li et al. 2021).

    Args:
        personal: local work on the personal model, ``moiety.sgd(eta, steps=s, pull=lambda)``. The pull is towards the
            shared model that is received; without one this is local training.
        shared: local work on the shared model, as in FedAvg; with form ``joint`` only.
        weighting: of the clients in the mean, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        form: ``joint`` trains the shared model too; ``finetune`` leaves it as it is given, and nothing is sent.
    """
    choice("form", form, FORMS)
    joint = form == "joint"
    if not joint:
        for name, value in {"shared": shared, "server": server}.items():
            must(value is None, name, "left out with form='finetune'", value, "There the server never moves.")
        must(weighting == "examples", "weighting", "left out with form='finetune'", weighting)
    must(shared is not None or not joint, "shared", "given with form='joint'", "nothing", "It trains the shared model.")
    personal_optimiser = optimiser_work("personal", personal, without=("keep_state",))
    shared_optimiser = personal_optimiser if shared is None else optimiser_work("shared", shared)
    weight = client_weights(weighting, shared_optimiser.rows)

    def local_w(work: Work, w: Params, state: OwnModel) -> Params:
        # Inexact solution of G_k, started from w^t: w_k^t <- w_k^t - eta grad F_k(w_k^t)
        model = work.compose(w, state.personal)
        model, _ = train(work, model, work.batches("shared"), {work.shared: shared_optimiser})
        return difference(work.parts(model)[0], w)

    def local_v(work: Work, w: Params, model: Params, state: OwnModel) -> tuple[OwnModel, Tensor]:
        # Inexact solution of h_k(v_k; w^t): v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)), s times
        model, loss = train(work, model, work.batches("personal"), {work.shared: personal_optimiser}, centre=w)
        return keep_own_model(work, model, state), loss

    def client_update(work: Work, w: Params, state: OwnModel) -> tuple[ClientUpdate, OwnModel]:
        change = local_w(work, w, state) if joint else {}
        after, loss = local_v(work, w, work.compose(state.shared, state.personal), state)
        return ClientUpdate(change, weight(work), {"loss": loss}), after

    return assemble(
        phases=({"shared": shared_optimiser.phase} if joint else {}) | {"personal": personal_optimiser.phase},
        init_client=begin_own_model,  # v_k^0 = w^0
        client_update=client_update,
        personal_model=own_model,
        adapt=lambda work, w, state: local_v(work, w, work.compose(*own_model(w, state)), state)[0],
        aggregator=weighted_mean if joint else None,
        server=server,
        schedule=schedule,
        default_split="nothing",
    )
