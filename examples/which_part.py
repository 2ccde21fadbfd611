"""Ask which part of a model should be personal: sensors that are calibrated differently at every site."""

import numpy as np

import moiety as mo


def make_readings(sites=24, rows=60):
    """Make readings whose scale and offset differ from site to site; what they mean is the same everywhere."""
    rng = np.random.default_rng(0)
    site, truth = np.repeat(np.arange(sites), rows), rng.normal(size=(sites * rows, 3))
    label = (np.abs(truth).argmax(axis=1)).astype(int)
    gain, offset = rng.choice([-2.0, -1.0, 1.0, 2.0], (sites, 3)), rng.normal(size=(sites, 3))
    reading = (truth * gain[site] + offset[site]).astype("float32")
    return mo.data.from_arrays({"x": reading, "y": label}, client=site, validation=0.25, test=0.25, seed=0)


def main(budget="30 s", out=None):
    """Print the answer, and the file that trains the winner."""
    fed = make_readings()
    model = mo.models.mlp(inputs=3, outputs=3, hidden=(8, 16), seed=0)
    answer = mo.recommend(model, fed, budget, work=mo.sgd(0.1, batch_size=10), out=out)
    print(answer)
    print(answer.toml)
    return answer


if __name__ == "__main__":
    main()
