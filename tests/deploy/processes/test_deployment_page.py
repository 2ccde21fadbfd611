"""The commands of docs/deployment.md, as printed: on one machine, with its address and free ports for those printed."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from docs_files import DOCS
from harness import LONG, WELCOME, Trial, check_equals_simulation
from night import NIGHTLY

from moiety.deploy.commands import run_command
from moiety.deploy.init import write_connection
from moiety.deploy.keys import make_keys
from moiety.deploy.processes import Processes, free_ports, wait_until

PAGE = (DOCS / "deployment.md").read_text(encoding="utf-8")
NGINX = shutil.which("nginx")


def find_blocks(title: str, kind: str) -> list[str]:
    """The blocks of a kind in a section, without their indentation."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    assert section is not None, title
    blocks = re.findall(rf"^( *)```{kind}\n(.*?)^ *```$", section[1], re.M | re.S)
    return [re.sub(f"^{indent}", "", text, flags=re.M) for indent, text in blocks]


class Laptops:
    """Folders of the server and of two devices, and the terminals that are open in them."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        port, *ports = free_ports(3)
        self.ports = {"server": "9094", "device-1": str(ports[0]), "device-2": str(ports[1])}
        self.port = str(port)
        for party in self.ports:
            (folder / party).mkdir()

    def adapt(self, party: str, text: str) -> str:
        """What the page prints, with this machine's address and ports; on the second device as the page says it."""
        text = text.replace("192.168.1.5", "127.0.0.1").replace("9092", self.port).replace("9094", self.ports[party])
        if party == "device-2":
            text = text.replace("node-1", "node-2").replace("partition-id=0", "partition-id=1")
        return text.replace("--nodes 2", f"--nodes 2 --port {self.port}")

    def open(self, party: str, name: str, *blocks: str) -> None:
        """Type blocks into a new terminal of a party."""
        script = "\n".join(["set -eu", f"cd {self.folder / party}", *(self.adapt(party, each) for each in blocks)])
        self.processes.start(name, ["bash", "-c", script])

    def finish(self, party: str, name: str, *blocks: str) -> str:
        """The same, to the end of the last command; what was printed."""
        self.open(party, name, *blocks)
        code, text = self.processes.wait(name, LONG), self.processes.log(name)
        assert code == 0, text
        return text

    def copy(self, party: str, *names: str) -> None:
        """Copy parts of the server's folder to a device."""
        for name in names:
            shutil.copytree(self.folder / "server" / "trial" / name, self.folder / party / "trial" / name)


def walk(laptops: Laptops, init: str, *, more: str = "", exports: str = "") -> str:
    """Go through the section of two laptops; what the last command of the server printed."""
    first, env, link, executor, register, node, worker, run, use = find_blocks("Two laptops", "sh")
    laptops.finish("server", "init", init or first)
    for device, key in (("device-1", "keys/node-1"), ("device-2", "keys/node-2")):
        laptops.copy(device, key, "app")
    processes = laptops.processes
    laptops.open("server", "superlink", env, link)
    laptops.open("server", "executor", env, executor)
    # A person waits until the SuperLink says that it is up; this asks until it answers.
    laptops.finish("server", "register", env, "until flwr supernode list trial; do sleep 0.2; done", register)
    for device in ("device-1", "device-2"):
        laptops.open(device, f"{device}-node", env, node.replace("partition-id=0", f"partition-id=0{more}"))
        laptops.open(device, f"{device}-worker", env, worker)
    for device in ("device-1", "device-2"):
        wait_until(lambda device=device: WELCOME in processes.log(f"{device}-node"), LONG, device)  # type: ignore[misc]
    text = laptops.finish("server", "run", env, run)
    assert "10 of 10 rounds, ended" in text
    for device in ("device-1", "device-2"):
        said = laptops.finish(device, f"{device}-use", env, use.replace("partition-id=0", exports or "partition-id=0"))
        assert "a device that has joined 1 run" in said
        assert "parameters to model.safetensors" in said
        assert (laptops.folder / device / "trial" / "model.safetensors").stat().st_size > 100
    return text


def test_two_laptops(tmp_path):
    with Processes(tmp_path / "logs") as processes:
        text = walk(Laptops(tmp_path, processes), "")
    assert all(f"node-{k}" in text for k in (1, 2))


@pytest.mark.skipif(not NIGHTLY, reason="the same walk as above, with a file of tables")
def test_two_laptops_with_the_tables_of_the_page(tmp_path):
    """The file of the page, on two tables of which each has one of the wards."""
    (file,) = find_blocks("The app", "toml")
    with Processes(tmp_path / "logs") as processes:
        laptops = Laptops(tmp_path, processes)
        (tmp_path / "server" / "federation.toml").write_text(file)
        for device, ward in (("device-1", "day"), ("device-2", "night")):
            place = tmp_path / device / "trial"
            place.mkdir()
            rows = [f"p{k},{30 + k % 41},{ward},{('ill', 'well')[k * k % 7 > 2]}" for k in range(60)]
            (place / "visits.csv").write_text("\n".join(["patient,age,ward,outcome", *rows]) + "\n")
        init = find_blocks("Two laptops", "sh")[0].rstrip() + " --file federation.toml"
        walk(laptops, init, more=' data="visits.csv"', exports='data="visits.csv"')


@pytest.mark.skipif(not NIGHTLY, reason="a minute; keys of the same kind are made by the other tests")
def test_a_site_makes_its_own_key(tmp_path):
    """The commands make what a node needs, and nobody else can read it."""
    (commands,) = find_blocks("A hospital network", "sh")
    trial = Trial(tmp_path / "trial")
    for node in trial.nodes:
        place = trial.link.keys / node
        for name in ("node.key", "node.pub", "executor.secret"):
            (place / name).unlink()
        subprocess.run(["bash", "-ec", commands], cwd=place, check=True)
        assert {(place / name).stat().st_mode & 0o777 for name in ("node.key", "executor.secret")} == {0o600}
    with trial as running:
        running.start()
        out = running.submit("own-keys", algorithm="fedalt", rounds=2)
        running.finish(out)
        check_equals_simulation(out, running.folder, "fedalt", 2)


def ask(place: str, path: str, authority: Path) -> int:
    """The status with which a server answers."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(f"https://{place}{path}", data=b"", timeout=60, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.skipif(not NIGHTLY or NGINX is None, reason="needs nginx")
def test_the_proxy_of_a_hospital_lets_nodes_through_and_nobody_else(tmp_path):
    """The block for nginx, with another authority than the SuperLink's; all nodes come by it."""
    (block,) = find_blocks("A hospital network", "nginx")
    hospital, (port,) = tmp_path / "hospital", free_ports(1)
    make_keys(hospital, ["127.0.0.1"], ["unused"])
    with Trial(tmp_path / "trial") as running:
        for line, other in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/fed.hospital.org.crt": str(hospital / "server" / "server.crt"),
            "/etc/ssl/fed.hospital.org.key": str(hospital / "server" / "server.key"),
            "127.0.0.1:9092": running.link.place,
        }.items():
            assert line in block
            block = block.replace(line, other)
        folders = "".join(
            f"{kind}_temp_path {tmp_path / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = f"user root;\ndaemon off;\npid {tmp_path / 'nginx.pid'};\nerror_log stderr;\nevents {{}}\n"
        (tmp_path / "nginx.conf").write_text(f"{config}http {{\naccess_log off;\n{folders}{block}}}\n")
        for node in running.nodes:
            shutil.copy(hospital / "server" / "ca.crt", running.link.keys / node / "ca.crt")
        outside = replace(running.link, port=port)
        running.links = dict.fromkeys(running.nodes, outside)
        running.start_server()
        running.processes.start("nginx", [str(NGINX), "-c", str(tmp_path / "nginx.conf")])
        for node in running.nodes:
            running.start_site(node)
        out = running.submit("by-proxy", algorithm="fedalt", rounds=2)
        running.finish(out)
        check_equals_simulation(out, running.folder, "fedalt", 2)
        inside = running.link.keys / "server" / "ca.crt"
        authority = hospital / "server" / "ca.crt"
        for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/health", "/"):
            assert ask(outside.place, path, authority) == 403
            assert ask(running.link.place, path, inside) != 403
        assert ask(outside.place, "/v1/fleet/pull-messages", authority) != 403
        # Whoever knows the address of the proxy cannot start a run there.
        home = tmp_path / "stranger"
        write_connection(home, replace(outside, keys=hospital))
        command = run_command(running.folder / "apps" / "by-proxy")
        running.processes.start("stranger", command, {"FLWR_HOME": str(home)})
        assert running.processes.wait("stranger", LONG) != 0
