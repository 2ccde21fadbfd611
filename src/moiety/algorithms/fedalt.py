"""FedAlt: alternating updates of the shared and the personal parameters.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization", ICML 2022.
Algorithm 1 with LocalAlt (Algorithm 2); Algorithm 4 is the same with unequal weights.

Symbols: u what is received; v_i ``state.personal``; gamma_u, tau_u and gamma_v, tau_v the learning rates and lengths of
``shared`` and ``personal``; alpha_i ``weighting``; S^(t) the cohort.

Reduces to FedAvg where nothing is personal: the first loop is then empty.

Deviations from the paper:

1. A client sends the change u_i - u instead of u_i, so that the server can use any optimiser. With the default server
   (SGD with learning rate 1) the result is line 16 of the paper, up to rounding.
2. Data is sampled without replacement, in freshly shuffled epochs; the last batch of an epoch may be smaller. Algorithm
   4 uses the samples of the v-steps again in the u-steps. Here the u-steps have their own shuffle, as in the authors'
   experiments.
3. Options that the pseudocode does not have, all off by default: momentum, weight decay, a pull and clipping (each part
   has its own), schedules, other server optimisers, stateless clients. The paper's appendices B.3 and C.4 use the last
   four.
4. Secure aggregation (Algorithm 4, line 16) is not simulated. An update that is not finite is left out.
5. Running statistics of BatchNorm, which the paper does not have, move in both phases.
6. Clients without state and new clients get v by lines 2 to 5 at the full learning rate, whatever the schedule. The
   authors' program evaluates clients without state with the v of their last turn; ``restart=True`` does so too.
"""

from __future__ import annotations

from torch import Tensor

from moiety.errors import must
from moiety.local import Kept, Optimiser, Personal, begin_personal, continue_training, difference, optimiser_work, train
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, ServerOptimiser, Work


@recorded
def fedalt(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    stateful: bool = True,
    restart: bool = False,
) -> Algorithm:
    """FedAlt: personal parameters first, then shared ones (Pillutla et al. 2022).

    Args:
        shared: local work on the shared parameters: gamma_u, or ``moiety.sgd(gamma_u, steps=tau_u)``.
        personal: local work on the personal parameters: gamma_v, or ``moiety.sgd(gamma_v, steps=tau_v)``. Its ``pull``
            is towards the model's first personal values.
        weighting: alpha_i, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the client learning rates across rounds; constant by default.
        stateful: False lets v_i start anew in each turn (appendix C.4); evaluation then makes one on the spot.
        restart: the same training, but evaluation uses the v_i of the client's last turn (its first v_i before).
    """
    must(stateful or not restart, "restart", "left out with stateful=False", restart, "Each is a rule of its own.")
    shared_optimiser = optimiser_work("shared", shared)
    unsupported = ("keep_state",) if restart or not stateful else ()
    personal_optimiser = optimiser_work("personal", personal, without=unsupported)
    weight = client_weights(weighting, shared_optimiser.rows)

    def local_v(work: Work, u: Params, state: Personal) -> tuple[Params, Tensor, Kept]:
        # Algorithm 2, lines 2-5: v_{i,k+1} = v_{i,k} - gamma_v grad_v F_i(u, v_{i,k})
        model, parts = work.compose(u, state.personal), {work.personal: personal_optimiser}
        batches, centre = work.batches("personal"), work.task.init
        return continue_training(work, model, batches, parts, state.memory, centre=centre)

    def client_update(work: Work, u: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        begin = Personal(work.parts(work.task.init)[1], state.memory) if restart else state
        model, loss_v, memory = local_v(work, u, begin)
        # Lines 6-7: u_{i,k+1} = u_{i,k} - gamma_u grad_u F_i(u_{i,k}, v_i^+)
        model, loss_u = train(work, model, work.batches("shared"), {work.shared: shared_optimiser})
        u_i, v_i = work.parts(model)  # lines 8-9
        loss = loss_u if work.shared else loss_v
        after = Personal(v_i, memory) if stateful else state
        return ClientUpdate(difference(u_i, u), weight(work), {"loss": loss}), after

    def adapt(work: Work, u: Params, state: Personal) -> Personal:
        model, _, memory = local_v(work, u, state)
        return Personal(work.parts(model)[1], memory)

    return assemble(
        phases={"personal": personal_optimiser.phase, "shared": shared_optimiser.phase},
        init_client=begin_personal(personal_optimiser),
        client_update=client_update,
        adapt=adapt,
        stateful=stateful,
        server=server,
        schedule=schedule,
    )
