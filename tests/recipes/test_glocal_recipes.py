"""The recipes of the Glocal paper at scale ci: what they write is what their cells hold."""

import contextlib
import io
import json

import numpy as np
import pytest

from moiety.cli import main
from moiety.recipes.glocal_curves import SIZES as CURVES
from moiety.recipes.glocal_curves import halves
from moiety.recipes.glocal_fictitious import SIZES as ROLLOUTS
from moiety.recipes.glocal_fictitious import rollouts
from moiety.recipes.glocal_table1 import PAPER, SIZES

T_1 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""
NAMES = ("glocal-table1", "glocal-clients", "glocal-delay", "glocal-features", "glocal-fictitious")


def command(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    made = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp("glocal") / name
        code, out, err = command("run", name, "--scale", "ci", "--out", folder)
        assert (code, err) == (0, "")
        made[name] = folder, out, json.loads((folder / "table.json").read_text())
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_written_and_printed(ended, name):
    folder, out, table = ended[name]
    page = (folder / "table.md").read_text()
    assert page.strip() in out
    assert table["command"] in page
    for line in page.splitlines():
        if line.startswith("!["):
            file = line.split("(")[-1].rstrip(")")
            assert (folder / file).read_bytes().startswith(b"\x89PNG")


def test_table_1_is_the_mean_over_partitions_at_the_rate_that_validation_chose(ended):
    _, _, table = ended["glocal-table1"]
    methods = table["cells"]["digits"]["methods"]
    rows = {row["row"]: row for row in table["rows"]}
    for method, label in (("independent", "Indep"), ("central", "Central"), ("glocal", "Glocal")):
        found, row = methods[method], rows[f"digits: {label}"]
        a, b = found["each"]
        assert row["ours"] == pytest.approx(50 * (a + b))
        assert row["interval"] == pytest.approx([row["ours"] + s * T_1 * 50 * abs(a - b) for s in (-1, 1)], abs=1e-3)
        assert found["lr"] == SIZES["ci"].rates[int(np.argmax(found["validation"]))]
    gain = np.subtract(methods["glocal"]["each"], methods["central"]["each"])
    claim = rows["digits: Glocal beats Central"]
    assert claim["ours"] == pytest.approx(100 * gain.mean())
    low, high = claim["interval"]
    wanted = "holds" if low > 0 else "does not hold" if high < 0 else "not decided at this scale"
    assert claim["verdict"] == wanted


def test_every_point_of_the_figures_is_in_the_table(ended):
    size = CURVES["ci"]
    for name in ("glocal-clients", "glocal-features"):
        rows = [row["row"] for row in ended[name][2]["rows"]]
        assert {f"digits, {p} clients: {m}" for p in size.clients for m in ("Indep", "Central", "Glocal")} <= set(rows)
    rows = [row["row"] for row in ended["glocal-delay"][2]["rows"]]
    assert {f"digits, tau {t}: {r}" for t in size.delays for r in ("aligned", "asymmetric", "misaligned")} <= set(rows)


def test_without_delay_the_three_rules_are_one(ended):
    rules = ended["glocal-delay"][2]["cells"]["digits"]["rules"]
    assert rules["aligned"][0]["each"] == rules["misaligned"][0]["each"] == rules["asymmetric"][0]["each"]


def test_resuming_reads_what_has_ended(ended):
    folder, _, _ = ended["glocal-table1"]
    cell = folder / "cells" / "digits.json"
    kept = json.loads(cell.read_text())
    kept["methods"]["glocal"]["each"] = [1.0, 1.0]
    cell.write_text(json.dumps(kept))
    code, out, _ = command("run", "glocal-table1", "--scale", "ci", "--out", folder, "--resume")
    assert code == 0
    assert "100.00 [100.00, 100.00]" in out


def test_full_size_is_the_papers():
    size = SIZES["paper"]
    assert (size.clients, size.partitions, size.passes, len(size.rates)) == (30, 5, 15, 7)
    assert set(size.sources) == set(PAPER)
    assert size.rates[0] == 0.002
    assert size.rates[-1] * 2 > 0.2
    curves = CURVES["paper"]
    assert (curves.rounds, curves.delays[-1], curves.trials) == (1200, 1200 // 6, 10)
    assert (ROLLOUTS["paper"].rollouts, ROLLOUTS["paper"].rounds) == (50, 20_000)


def test_halves_are_drawn_for_every_trial_and_share_the_constant():
    some, others = halves(7, range(3))
    assert some[:, :-1].sum(1).tolist() == [3, 3, 3]
    assert (some + others)[:, :-1].eq(1).all()
    assert some[:, -1].eq(1).all()
    assert others[:, -1].eq(1).all()
    assert not some[0].equal(some[1])


def test_rollouts_have_the_best_pair_of_the_appendix():
    """w^g = w^l = (0, 1) gives b + 1 - b = 1 = y for every example; e has the variance 0.25."""
    g, own, y = rollouts(0, 2, 5000)
    np.testing.assert_allclose(g[..., 1] + own[..., 1], y)
    noise = g[..., 0] - (1 - own[..., 0])
    assert noise.var() == pytest.approx(0.25, rel=0.05)


def test_an_engine_is_refused_in_one_line(tmp_path):
    code, _, err = command("run", "glocal-table1", "--scale", "ci", "--engine", "sequential", "--out", tmp_path / "a")
    assert code == 2
    assert "`engine` must be vectorised or left out for glocal-table1, got sequential." in " ".join(err.split())
