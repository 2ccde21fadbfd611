# %% [markdown]
# # From simulation to devices
#
# Four hospitals have a CSV file each. First we simulate their federation on one machine. Then we declare it for
# devices: each hospital reads its own file, and no other process does. In the end we train between real processes, a
# server and four nodes, and kill one of them. This needs the extra `flower`.

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
# All rows are here, so we can try what we like: the split, the rates, the number of rounds.

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
# One file for both sides. The server and each node run it; `app.server` and `app.client` are Flower's ServerApp and
# ClientApp. A node's own configuration says where its file is. Means and scales are agreed on by sums, classes by
# names.

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
# `moiety deploy init` writes this as a complete Flower app, with certificates and a key for each node, and a README of
# the commands for two machines or twenty.

# %%
import subprocess
import sys

init = [sys.executable, "-m", "moiety", "deploy", "init", str(here / "trial"), "--address", "127.0.0.1", "--nodes", "4"]
print(subprocess.run(init, capture_output=True, text=True, check=True).stdout.replace(str(here), "."))

# %% [markdown]
# ## Train between processes
#
# `moiety deploy demo` starts all of it on this machine: a SuperLink with TLS, and four SuperNodes that show their keys
# and have folders of their own. They train on handwritten digits, by the same algorithm with the same split. Node 4 is
# killed after the third round. The others go on, and the killed device can still predict with the model that it has.

# %%
demo = [sys.executable, "-m", "moiety", "deploy", "demo", "--rounds", "5", "--out", str(here / "demo")]
said = subprocess.run(demo, capture_output=True, text=True, check=True).stdout
print(said.replace(str(here), "."))
devices = [line.split() for line in said.splitlines() if line.startswith("node-")]
assert [state for _, state, *_ in devices] == ["running", "running", "running", "killed"]

# %% [markdown]
# [Devices](../deployment.md) goes on from here: a hospital network, and who sees what.
