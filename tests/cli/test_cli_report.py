"""``moiety report``, the report at the end of a run, and the live page."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_command import PERSONAL, call, one_line
from waiting import LONG

import moiety as mo
from moiety.cli.live import make_server
from moiety.evaluation.paired import measure_change

MANY = PERSONAL.replace("rounds = 2", "rounds = 3\nevaluate_every = 1")


def read_data(page: Path) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def headline(text: str) -> str:
    (line,) = re.findall("<h1>(.*?)</h1>", text)
    return line


def test_a_run_ends_with_a_report_that_agrees_with_its_rows_and_with_the_report_of_its_folder(capsys, tmp_path):
    file, folder = tmp_path / "first.toml", tmp_path / "run"
    file.write_text(MANY)
    result = call(capsys, "run", file, "--out", folder)
    assert f"report in {folder / 'report.html'}" in result.out.splitlines()
    data = read_data(folder / "report.html")
    run = mo.load(folder)
    assert data["clients"]["names"] == [row["client"] for row in run.clients]
    assert data["views"][0]["gain"] == pytest.approx([row["gain"] for row in run.clients], rel=1e-4)
    assert [t for t, *_ in data["curves"]["groups"][0]["columns"]["round"]] == [1, 2, 3]
    own, shared = run.score_rows(), run.score_rows(shared=True)
    ends = [measure_change(own[name].metric, shared[name].metric).low for name in data["clients"]["names"]]
    assert data["views"][0]["low"] == pytest.approx(ends, rel=1e-4, abs=1e-9)

    again = call(capsys, "report", folder, "--out", tmp_path / "page.html")
    assert again.out == f"report in {tmp_path / 'page.html'}\n"
    folder_data = read_data(tmp_path / "page.html")
    assert folder_data["views"][0]["gain"] == data["views"][0]["gain"]
    # A folder does not hold the score of every row: its intervals are the widest.
    widest = folder_data["views"][0]["low"]
    assert all(wide <= exact + 1e-9 for wide, exact in zip(widest, data["views"][0]["low"], strict=True))
    assert folder_data["curves"]["groups"][0]["columns"] == data["curves"]["groups"][0]["columns"]


def test_seeds_and_sweeps_end_with_one_report_of_all_their_runs(capsys, tmp_path):
    file = tmp_path / "first.toml"
    file.write_text(PERSONAL)
    call(capsys, "run", file, "--seed", "0,1", "--out", tmp_path / "seeds", "-q")
    data = read_data(tmp_path / "seeds" / "report.html")
    assert [(each["name"], each["seeds"]) for each in data["curves"]["groups"]] == [("seeds", 2)]
    grid = ("--grid", "algorithm.personal.lr=0.1,0.5", "--seeds", "2", "--jobs", "1")
    result = call(capsys, "sweep", file, *grid, "--out", tmp_path / "sweep")
    assert f"report in {tmp_path / 'sweep' / 'report.html'}" in result.out.splitlines()
    data = read_data(tmp_path / "sweep" / "report.html")
    assert [each["seeds"] for each in data["curves"]["groups"]] == [2, 2]
    assert data["pairs"][0]["n"] == 2


def test_what_cannot_be_reported_is_said_in_one_line(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    wrong = call(capsys, "report", tmp_path / "empty", "--out", tmp_path / "page.html")
    assert wrong.code == 2
    assert one_line(wrong.err)
    wrong = call(capsys, "watch", tmp_path / "nothing")
    assert wrong.code == 2
    assert one_line(wrong.err)
    assert not (tmp_path / "page.html").exists()


@contextmanager
def serve(folder: Path) -> Iterator[int]:
    server, _ = make_server(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_the_live_page_follows_a_folder_and_answers_to_its_own_name_alone(tmp_path):
    folder, headlines = tmp_path / "run", []
    fed = mo.data.load("digits", clients=4, partition=mo.data.iid(), seed=0)
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)

    class Look(mo.callbacks.Callback):
        def on_evaluate(self, run, row):
            headlines.append(headline(ask(port, "/")[1]))

    with serve(tmp_path) as port:
        code, text = ask(port, "/")
        assert code == 200
        assert "Nothing has begun" in headline(text)
        algorithm, split = mo.fedalt(shared=0.1, personal=0.1), mo.split.output_layer(model)
        settings = mo.Settings(evaluate_every=1)
        run = mo.fit(
            model, fed, algorithm, split=split, rounds=3, out=folder, callbacks=[Look()], settings=settings,
            engine="sequential",
        )  # fmt: skip
        assert [line.split(":")[0] for line in headlines] == ["Round 1 of 3", "Round 2 of 3", "Round 3 of 3"]
        code, text = ask(port, "/state?since=")
        news = json.loads(text)
        assert code == 200
        assert news["data"]["ended"] is True
        assert news["data"]["clients"]["names"] == [row["client"] for row in run.clients]
        assert ask(port, f"/state?since={news['stamp']}") == (204, "")
        assert ask(port, "/", host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}"):
            code, text = ask(port, "/", host=host)
            assert code == 403
            assert "digits" not in text
        assert ask(port, "/../run/config.toml")[0] == 404
        assert ask(port, "/", method="POST")[0] == 501


def test_a_run_in_memory_and_its_folder_report_the_same_calibration_and_draws(capsys, tmp_path):
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), seed=0)
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    split = mo.split.by_name(model, personal=["head.bias"])
    run = mo.fit(model, fed, mo.fedpop(), split=split, rounds=1, engine="sequential", out=tmp_path / "run")
    path = run.report(tmp_path / "deep" / "report.html")
    data = read_data(path)
    call(capsys, "report", tmp_path / "run", "--out", tmp_path / "page.html")
    from_folder = read_data(tmp_path / "page.html")
    assert from_folder["reliability"][0]["bins"] == data["reliability"][0]["bins"]
    assert from_folder["draws"][0]["effective"] == data["draws"][0]["effective"]
    draws = [row["effective_draws"] for row in run.clients]
    assert data["draws"][0]["effective"] == pytest.approx(draws, rel=1e-4)
    bins = data["reliability"][0]["bins"]
    _, together = run.calibration()
    assert sum(each["n"] for each in bins) == together["n"]
    right = sum(each["n"] * each["accuracy"] for each in bins) / together["n"]
    assert right == pytest.approx(together["accuracy"], rel=1e-4)


def test_a_run_in_memory_is_compared_with_another(tmp_path):
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), seed=0)
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    one = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    split = mo.split.output_layer(model)
    fedalt = mo.fedalt(shared=0.1, personal=0.1)
    run = mo.fit(model, fed, fedalt, split=split, rounds=1, engine="sequential")
    data = read_data(run.report(tmp_path / "report.html", against=one))
    (pair,) = data["pairs"]
    assert pair["label"] == "fedalt against fedavg"
    assert pair["mean"] == pytest.approx(run.history[-1]["metric"] - one.history[-1]["metric"], rel=1e-4)
    gains = [own["metric"] - old["metric"] for own, old in zip(run.clients, one.clients, strict=True)]
    assert data["views"][0]["gain"] == pytest.approx(gains, abs=1e-4)
    again = mo.fit(model, fed, fedalt, split=split, rounds=1, engine="sequential")
    page = again.report(tmp_path / "report.html", against=run)
    assert read_data(page)["pairs"][0]["label"] == "fedalt 2 against fedalt 1"
    other = mo.data.load("digits", clients=4, partition=mo.data.iid(), seed=0)
    odd = mo.fit(model, other, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    before = page.read_bytes()
    for wrong, words in ((odd, "must be the same in all runs"), ("runs/one", "must be a run")):
        with pytest.raises(mo.MoietyError, match=words):
            run.report(page, against=wrong)
    assert page.read_bytes() == before
