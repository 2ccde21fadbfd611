# %% [markdown]
# # Hugging Face with LoRA
#
# This tutorial trains a text classifier from transformers, with a personal LoRA for each of ten clients. The model is
# built from a configuration, so that nothing is downloaded. If you load a model with `from_pretrained` instead, the
# rest stays the same. You need the extra `hf`.

# %%
import numpy as np
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import moiety as mo

# %% [markdown]
# The rows are made-up reviews: some tokens are good words, others are bad words. Half of the clients are ironic and
# mean the opposite. So one model for all must fail for one half of the clients.

# %%
rng = np.random.default_rng(0)
client = np.repeat(np.arange(10), 40)
input_ids = rng.integers(1, 200, (400, 12))
good = (input_ids < 100).mean(axis=1) > 0.5
columns = {
    "input_ids": input_ids,
    "attention_mask": np.ones_like(input_ids),
    "y": np.where(client % 2 == 0, good, ~good).astype(int),
}
fed = mo.data.from_arrays(columns, client=client, test=0.25, seed=0)

config = DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=2, hidden_dim=64, dropout=0.0, num_labels=2)
model = DistilBertForSequenceClassification(config)
split = mo.split.lora(model, rank=2)
print(split.summary())

# %% [markdown]
# The backbone and the head are shared, and all clients train them. The LoRA matrices stay with each client.

# %%
algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=8), personal=mo.sgd(0.5, epochs=2, batch_size=8))
run = mo.fit(model, fed, algorithm, split=split, rounds=10, cohort=5, seed=0, engine="sequential", progress=False)
print(run)

# %% [markdown]
# With its LoRA merged into the weights, a client's model is an ordinary transformers model again.

# %%
own = run.export(3, merge=True)
type(own).__name__, sum(p.numel() for p in own.parameters())
