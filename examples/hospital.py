"""From a CSV file with a column of sites to a model for each hospital, and a line for each: who gains, who is hurt."""

import csv
import pathlib
import random
import tempfile

import moiety as mo


def write_visits(path, sites=8, visits=60):
    """Make a table to work on: half of the hospitals respond to the dose the other way round."""
    chance = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["site", "age", "shift", "dose", "outcome"])
        for visit in range(sites * visits):
            site, dose = visit % sites, chance.gauss(0, 1)
            outcome = "well" if (dose > 0) != (site % 2 == 1) else "ill"
            shift = chance.choice(["day", "night"])
            table.writerow([f"site-{site}", round(chance.gauss(50, 15)), shift, round(dose, 2), outcome])


def main(rounds=40):
    """Train a shared body with a personal output layer, and print what each hospital has of it."""
    path = pathlib.Path(tempfile.mkdtemp(), "visits.csv")
    write_visits(path)
    fed = mo.data.from_frame(path, client="site", target="outcome", standardise=True)
    model = mo.models.mlp(inputs=4, outputs=2, hidden=(16,), seed=0)
    split = mo.split.output_layer(model)
    run = mo.fit(model, fed, mo.fedalt(shared=0.2, personal=0.2), split=split, rounds=rounds)
    for row in run.clients:
        print(f"{row['client']}: {row['metric']:.0%} right, {row['gain']:+.0%} against the shared model alone")
    print(run.predict("site-3", {"age": [61, 45], "shift": ["day", "night"], "dose": [1.5, -1.5]}))
    return run


if __name__ == "__main__":
    main()
