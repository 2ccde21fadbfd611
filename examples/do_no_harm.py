"""Some clients are unlike the others: who should have a model of its own? Each client decides, and few are hurt."""

import numpy as np

import moiety as mo


def draw_clients(clients=24, rows=60):
    """Rows of clients: every fourth has its labels swapped in pairs, the others differ in nothing."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(4, 6))
    data = {}
    for i in range(clients):
        y = rng.integers(4, size=rows)
        x = centre[y] + 1.2 * rng.normal(size=(rows, 6))
        data[f"client-{i}"] = {"x": x.astype(np.float32), "y": y if i % 4 else y ^ 1}
    return mo.data.from_clients(data, test=0.5, validation=0.2, seed=0)


def main(rounds=30):
    """Train, let clients choose, and say who is hurt before and after."""
    fed = draw_clients()
    model = mo.models.mlp(6, 4, hidden=(16,), seed=0)
    work = mo.sgd(0.1, batch_size=8)
    one = mo.fit(model, fed, mo.fedavg(shared=work), rounds=rounds)
    split = mo.split.everything(model)
    run = mo.fit(
        model, fed, mo.finetune(personal=mo.sgd(0.1, epochs=20, batch_size=8)), split=split, rounds=1, start=one
    )
    print(run.safeguard())
    print(mo.analysis.report_harm(run))
    return run


if __name__ == "__main__":
    main()
