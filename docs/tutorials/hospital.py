# %% [markdown]
# # A hospital with few rows
#
# This tutorial shows how to get an interval for each prediction, even for clients with few rows. There are twenty
# hospitals with thirteen training rows each. Each has slopes of its own, near common ones. We train FedPop. It gives
# every hospital not one model but many draws from a posterior, and so an interval for each prediction.

# %%
import numpy as np

import moiety as mo

rng = np.random.default_rng(0)
hospitals = np.repeat(np.arange(20), 16)
x = rng.normal(size=(320, 3)).astype("float32")
slopes = np.array([1.0, -0.5, 0.3]) + 0.3 * rng.normal(size=(20, 3))
y = (np.einsum("ij,ij->i", x, slopes[hospitals]) + 0.3 * rng.normal(size=320)).astype("float32")
fed = mo.data.from_arrays({"x": x, "y": y}, client=hospitals, seed=0)
print(fed.describe())

# %% [markdown]
# The slopes are personal. The hospitals share the prior of the slopes and the size of the noise. FedPop learns both.

# %%
model = mo.models.linear(3, 1, seed=0)
split = mo.split.by_name(model, personal=["head.weight"])
run = mo.fit(model, fed, mo.fedpop(), split=split, rounds=100, seed=0, engine="vectorised")
print(run.history[-1]["metric_name"], round(run.history[-1]["metric"], 3))

# %% [markdown]
# Here are intervals for two patients of hospital 3: for the mean outcome, and for a single observation. `effective`
# says how many independent draws the intervals rest on. `rhat` says whether the halves of the chain agree; it should be
# near 1.

# %%
rows = fed.client(3, "test")["x"][:2]
prediction = run.predictive(3, rows, draws=50)
low, high = prediction.interval(0.9)
low_one, high_one = prediction.interval(0.9, of="observations")
print("effective draws", round(float(prediction.effective)), " R-hat", round(float(prediction.rhat), 2))
for i, truth in enumerate(fed.client(3, "test")["y"][:2]):
    print(
        f"patient {i}: mean between {float(low[i, 0]):.2f} and {float(high[i, 0]):.2f}, an observation between"
        f" {float(low_one[i, 0]):.2f} and {float(high_one[i, 0]):.2f}; observed {float(truth):.2f}"
    )

# %% [markdown]
# Do the intervals keep their promise? About 90% of all test rows of all hospitals should lie in their intervals.

# %%
inside = total = 0
for hospital in range(20):
    test = fed.client(hospital, "test")
    low, high = run.predictive(hospital, test["x"], draws=30).interval(0.9, of="observations")
    hit = (np.asarray(low).ravel() <= test["y"]) & (test["y"] <= np.asarray(high).ravel())
    inside, total = inside + int(hit.sum()), total + len(hit)
print(f"{inside} of {total} test rows are inside ({100 * inside / total:.0f}%)")

# %% [markdown]
# A hospital that training never saw gets intervals too, here from six rows of its own. Without any rows, the prediction
# comes from the population alone, and the interval is wider.

# %%
slope = np.array([1.2, -0.2, 0.1], dtype="float32")
own = {"x": x[:6], "y": x[:6] @ slope}
for name, who in (("six rows", own), ("no rows", None)):
    low, high = run.predictive(who, x[10:11], draws=30).interval(0.9)
    print(f"{name}: between {float(low[0, 0]):.2f} and {float(high[0, 0]):.2f}; true mean {float(x[10] @ slope):.2f}")
