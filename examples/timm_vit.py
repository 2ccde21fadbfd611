"""A vision transformer of timm, as it is, with a personal output layer for each of six clients."""

import numpy as np
import timm

import moiety as mo


def make_data(clients=6, rows=20, side=16):
    """Pictures of two kinds, bright and dark; every second client names them the other way round."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), rows)
    bright = rng.integers(0, 2, clients * rows)
    x = rng.normal(size=(clients * rows, 3, side, side)) + bright[:, None, None, None]
    return mo.data.from_arrays({"x": x.astype(np.float32), "y": (bright + client) % 2}, client=client, test=0.25)


def main(rounds=5):
    """Train, and print how much each client gains over the shared model."""
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 2}
    model = timm.models.vision_transformer.VisionTransformer(**sizes)
    split = mo.split.output_layer(model)
    algorithm = mo.fedalt(shared=mo.sgd(0.05, batch_size=5), personal=mo.sgd(0.1, epochs=3, batch_size=5))
    run = mo.fit(model, make_data(), algorithm, split=split, rounds=rounds, engine="sequential")
    print(run)
    for row in run.clients:
        print(row["client"], round(row["metric"], 2), "gain", round(row["gain"], 2))
    return run


if __name__ == "__main__":
    main()
