"""A text classifier of transformers with a personal LoRA for each of ten clients; nothing is downloaded.

Needs the extra: pip install "moiety[hf]". With a model of the hub, use DistilBertForSequenceClassification
.from_pretrained(...) and its tokenizer; the rest stays as it is.
"""

import numpy as np
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import moiety as mo


def make_data(clients=10, rows=40, words=200, length=12):
    """Reviews as tokens. Some words are good and some bad; half of the clients mean them ironically."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), rows)
    input_ids = rng.integers(1, words, (clients * rows, length))
    good = (input_ids < words // 2).mean(axis=1) > 0.5
    y = np.where(client % 2 == 0, good, ~good).astype(int)
    columns = {"input_ids": input_ids, "attention_mask": np.ones_like(input_ids), "y": y}
    return mo.data.from_arrays(columns, client=client, test=0.25, seed=0)


def main(rounds=10):
    """Train, print the closing line, and save what is client 3's own in its weights."""
    config = DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=2, hidden_dim=64, dropout=0.0, num_labels=2)
    model = DistilBertForSequenceClassification(config)
    split = mo.split.lora(model, rank=2)
    print(split.summary())
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=8), personal=mo.sgd(0.5, epochs=2, batch_size=8))
    run = mo.fit(model, make_data(), algorithm, split=split, rounds=rounds, cohort=5, engine="sequential")
    print(run)
    run.export(3, merge=True).save_pretrained("client-3")
    return run


if __name__ == "__main__":
    main()
