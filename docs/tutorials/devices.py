# %% [markdown]
# # From simulation to devices
#
# This tutorial takes a federation from a simulation to real processes. Four hospitals have a CSV file each. First we
# simulate their federation on one machine. Then we declare it for devices: each hospital reads only its own file. In
# the end we train with a server and four nodes as real processes, and kill one node. You need the extra `flower`.

# %%
import csv
import random
import tempfile
from pathlib import Path

import moiety as mo

here = Path(tempfile.mkdtemp())
chance = random.Random(0)
for site in range(4):
    with open(here / f"site-{site}.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["site", "age", "dose", "outcome"])
        for _ in range(80):
            age, dose = chance.gauss(50, 15), chance.gauss(0, 1)
            well = (dose > 0) != (site % 2 == 1)  # half of the sites write it down the other way round
            table.writerow([f"site-{site}", round(age), round(dose, 2), "well" if well else "ill"])

# %% [markdown]
# ## Simulate
#
# In a simulation all rows are in one place, so we can try splits, learning rates and numbers of rounds.

# %%
rows = [line for site in range(4) for line in (here / f"site-{site}.csv").read_text().splitlines()[site > 0 :]]
(here / "all.csv").write_text("\n".join(rows))
fed = mo.data.from_frame(here / "all.csv", client="site", target="outcome", standardise=True)
model = mo.models.mlp(inputs=2, outputs=2, hidden=(8,), seed=0)
algorithm = mo.fedalt(shared=0.2, personal=0.2)
run = mo.fit(model, fed, algorithm, split=mo.split.output_layer(model), rounds=20, engine="sequential", progress=False)
print(run)

# %% [markdown]
# ## Deploy
#
# One Python file serves both sides: the server and each node run it. `app.server` and `app.client` are Flower's
# ServerApp and ClientApp. A node's own configuration says where its CSV file is. Means, scales and classes must be the
# same for all nodes. To find them, each node sends sums and class names, never rows.

# %%
from moiety import deploy

app = deploy.app(
    model,
    algorithm,
    split=mo.split.output_layer(model),
    data=deploy.table(target="outcome", standardise=True),
    rounds=20,
    clients=4,
    out=here / "federation",
)
print(type(app.client), type(app.server))

# %% [markdown]
# `moiety deploy init` writes this as a complete Flower app, with certificates and a key for each node. Its README has
# the commands, whether you have two machines or twenty.

# %%
import subprocess
import sys

init = [sys.executable, "-m", "moiety", "deploy", "init", str(here / "trial"), "--address", "127.0.0.1", "--nodes", "4"]
print(subprocess.run(init, capture_output=True, text=True, check=True).stdout.replace(str(here), "."))

# %% [markdown]
# ## Train between processes
#
# `moiety deploy demo` starts a whole federation on this machine: Flower's server (a SuperLink) with TLS, and four nodes
# (SuperNodes) with their own keys and folders. They train on handwritten digits, with the same algorithm and the same
# split. Node 4 is killed after the third round. The others continue, and the killed device can still predict with the
# model that it has.

# %%
demo = [sys.executable, "-m", "moiety", "deploy", "demo", "--rounds", "5", "--out", str(here / "demo")]
output = subprocess.run(demo, capture_output=True, text=True, check=True).stdout
print(output.replace(str(here), "."))
devices = [line.split() for line in output.splitlines() if line.startswith("node-")]
assert [state for _, state, *_ in devices] == ["running", "running", "running", "killed"]

# %% [markdown]
# [Devices](../deployment.md) continues from here, with a hospital network, and says who sees what.
