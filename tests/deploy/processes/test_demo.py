"""``moiety deploy demo``, as a reader types it, only shorter."""

from __future__ import annotations

import pytest
from night import NIGHTLY
from recipe_runs import call_command


@pytest.mark.skipif(not NIGHTLY, reason="a minute and a half; the other tests here have its parts")
def test_the_demo_kills_a_node_and_every_device_predicts(tmp_path):
    folder = tmp_path / "demo"
    code, out, problem = call_command("deploy", "demo", "--rounds", "4", "--out", str(folder))
    assert code == 0, problem
    lines = [line.split() for line in out.splitlines() if line.startswith("node-")]
    assert [line[:2] for line in lines] == [["node-1", "running"], ["node-2", "running"], ["node-3", "running"],
                                            ["node-4", "killed"]]  # fmt: skip
    rounds = [int(line[5]) for line in lines]
    assert rounds[:3] == [4, 4, 4]
    assert rounds[3] >= 1  # it was killed after round 3, and predicts with the last model that it had
    assert all(0 < float(line[6].removesuffix("%")) <= 100 for line in lines)
    code, out, problem = call_command("deploy", "status", str(folder / "devices" / "node-1"))
    assert code == 0, problem
    assert "node-1" in out
