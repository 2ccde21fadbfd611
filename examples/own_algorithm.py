"""An algorithm of your own: FedProx (Li et al. 2020), in which clients are pulled towards the model they received."""

import moiety as mo
from moiety.local import Personal, difference, sgd_work, train
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import ClientUpdate


@recorded
def fedprox(*, shared, pull):
    """FedAvg with mu / 2 ||u_i - u||^2 added to each client's loss; ``pull`` is mu."""
    local = sgd_work("shared", mo.sgd(shared, pull=pull), without=())
    weight = client_weights("examples", local.rows)

    def client_update(work, u, state):
        model = work.compose(u, state.personal)
        model, loss = train(work, model, work.batches("local"), {work.shared: local}, centre=u)
        u_i, v_i = work.parts(model)
        return ClientUpdate(difference(u_i, u), weight(work), {"loss": loss}), Personal(v_i)

    return assemble(phases={"local": local.phase}, client_update=client_update)


def main(rounds=20, pulls=(0.0, 0.1, 1.0)):
    """Train with several strengths of the pull, on clients that differ."""
    fed = mo.data.load("digits", clients=10, partition=mo.data.dirichlet(0.1), seed=0)
    model = mo.models.linear(64, 10)
    split = mo.split.nothing(model)  # nothing is personal
    runs = {pull: mo.fit(model, fed, fedprox(shared=0.1, pull=pull), split=split, rounds=rounds) for pull in pulls}
    for pull, run in runs.items():
        print(f"pull {pull}: {run.history[-1]['metric']:.1%} right")
    return runs


if __name__ == "__main__":
    main()
