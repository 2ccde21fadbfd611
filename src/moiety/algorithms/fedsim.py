"""FedSim: simultaneous updates of the shared and the personal parameters.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022.
Algorithm 1 with LocalSim (Algorithm 3); Algorithm 5 is the same with unequal weights.

Symbols: u what is received; v_i ``state.personal``; gamma_u and gamma_v the learning rates of ``shared`` and
``personal``; tau the length of ``shared``; alpha_i ``weighting``; S^(t) the cohort.

Reduces to FedAvg where nothing is personal.

Deviations from the paper:

1. A client sends the change u_i - u instead of u_i, so that the server can use any optimiser. With the default server
   (SGD with learning rate 1) the result is line 12 of Algorithm 5, up to rounding.
2. Data is sampled without replacement, in freshly shuffled epochs; the last batch of an epoch may be smaller.
3. Options that the pseudocode does not have, all off by default: momentum, weight decay, a pull, clipping (of the joint
   gradient), schedules, other server optimisers, stateless clients. The paper's appendices B.3 and C.4 use the last
   four.
4. Secure aggregation (Algorithm 5, line 12) is not simulated: the server sees each upload. A client whose update is not
   finite is left out of the round.
5. Clients without state and new clients get v by LocalSim at the full learning rate, whatever the schedule; its u_i is
   not used. The authors' program evaluates clients without state with the v of their last turn; ``restart=True`` does
   so too.
6. Running statistics of BatchNorm, which the paper does not have, move in every step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moiety.errors import must
from moiety.local import Optimiser, Personal, begin_personal, continue_training, difference, optimiser_work
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work

JOINT: dict[str, Any] = dict.fromkeys(("epochs", "steps", "batch_size", "clip")) | {
    "accumulate": 1,
    "lr_decay": "constant",
}
"""The options that ``shared`` sets for both parts, each with the value that ``personal`` has where it is left out."""
AS_SHARED = "left out, or as in shared"


@recorded
def fedsim(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    stateful: bool = True,
    restart: bool = False,
) -> Algorithm:
    """FedSim: shared and personal parameters at the same time (Pillutla et al. 2022).

    Args:
        shared: local work on the shared parameters: gamma_u, or ``moiety.sgd(gamma_u, steps=tau)``. Its length,
            batches, ``lr_decay`` and ``clip`` (of the joint gradient) hold for both parts.
        personal: local work on the personal parameters: gamma_v, or ``moiety.sgd(gamma_v, ...)`` with momentum, weight
            decay and ``pull`` of its own. The pull is towards the model's first personal values.
        weighting: alpha_i, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        stateful: False lets v_i start anew from its first value each time (appendix C.4). A client is then evaluated
            with the v_i that it makes on the spot.
        restart: the same training, but a client is evaluated with the v_i that its last turn ended with, as in the
            authors' experiments; one that was never asked has its first value.
    """
    must(stateful or not restart, "restart", "left out with stateful=False", restart, "Each is a rule of its own.")
    shared_optimiser = optimiser_work("shared", shared)
    unsupported = ("keep_state",) if restart or not stateful else ()
    personal_optimiser = optimiser_work("personal", personal, epochs=None, batch_size=None, without=unsupported)
    for name, default in JOINT.items():
        option, common = getattr(personal_optimiser, name), getattr(shared_optimiser, name)
        must(option in (default, common), f"personal.{name}", AS_SHARED, option, "Both train at once.")
    same_order = personal_optimiser.shuffle or not shared_optimiser.shuffle
    must(same_order, "personal.shuffle", AS_SHARED, False, "Both train at once.")
    personal_optimiser = replace(personal_optimiser, **{name: getattr(shared_optimiser, name) for name in JOINT})
    weight = client_weights(weighting, shared_optimiser.rows)

    def local_sim(work: Work, u: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model = work.compose(u, state.personal)  # Algorithm 3, lines 2-3
        # Lines 4-6, both gradients at (u_{i,k}, v_{i,k}):
        #   v_{i,k+1} = v_{i,k} - gamma_v grad_v F_i(u_{i,k}, v_{i,k})
        #   u_{i,k+1} = u_{i,k} - gamma_u grad_u F_i(u_{i,k}, v_{i,k})
        parts = {work.personal: personal_optimiser, work.shared: shared_optimiser}
        batches, centre = work.batches("joint"), work.task.init
        model, loss, memory = continue_training(work, model, batches, parts, state.memory, centre=centre)
        u_i, v_i = work.parts(model)  # lines 7-9
        return ClientUpdate(difference(u_i, u), weight(work), {"loss": loss}), Personal(v_i, memory)

    def client_update(work: Work, u: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        begin = Personal(work.parts(work.task.init)[1], state.memory) if restart else state
        update, after = local_sim(work, u, begin)
        return update, after if stateful else state

    return assemble(
        phases={"joint": shared_optimiser.phase},
        init_client=begin_personal(personal_optimiser),
        client_update=client_update,
        adapt=lambda work, u, state: local_sim(work, u, state)[1],
        stateful=stateful,
        server=server,
        schedule=schedule,
    )
