"""``python -m moiety`` is the command, and its warnings are one line."""

import subprocess
import sys


def test_the_package_is_the_command():
    process = subprocess.run([sys.executable, "-m", "moiety", "list", "engines"], capture_output=True, text=True)
    assert process.returncode == 0
    assert "vectorised" in process.stdout


def test_warnings_are_one_line(tmp_path):
    (tmp_path / "wild.toml").write_text(
        '[data]\nname = "digits"\nclients = 3\nper_client = 8\n[model]\nname = "linear"\n'
        '[algorithm]\nname = "fedavg"\nshared = 1e38\n[run]\nrounds = 3\nengine = "sequential"\n'
    )
    words = [sys.executable, "-m", "moiety", "run", "wild.toml", "-q"]
    process = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stderr.startswith("moiety: `updates` must be finite for some client")
    assert len(process.stderr.splitlines()) == 1
    assert "updates were dropped" in process.stdout
