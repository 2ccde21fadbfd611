"""``moiety deploy init``: keys that Flower and OpenSSL take, that nobody else can read, and that never leave."""

from __future__ import annotations

import datetime
import io
import ssl
import stat
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509

from moiety.cli import main
from moiety.deploy import attempts
from moiety.deploy import keys as key_files
from moiety.deploy.init import DEFAULT, write_app
from moiety.deploy.keys import make_keys
from moiety.errors import MoietyError

PARTIES = {
    "ca": {"ca.key", "ca.crt"},
    "server": {"ca.crt", "server.crt", "server.key", "executor.secret"},
    "node-1": {"ca.crt", "node.key", "node.pub", "executor.secret"},
    "node-2": {"ca.crt", "node.key", "node.pub", "executor.secret"},
}


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "trial"
    write_app(folder, ["127.0.0.1", "fed.example.org"], nodes=2)
    return folder


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_each_party_has_its_own_files_for_its_owner_alone(trial):
    keys = trial / "keys"
    assert {each.name: {file.name for file in each.iterdir()} for each in keys.iterdir() if each.is_dir()} == PARTIES
    for path in keys.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert (keys / ".gitignore").read_text() == "*\n"


def test_no_secret_is_in_two_places(trial):
    """The authority's key and every other secret occur in one file of the folder: no copy goes to another party."""
    content = read_all(trial)
    secret = [path for path in content if path.suffix in (".key", ".secret")]
    assert len(secret) == 1 + 2 + 2 * 2
    for path in secret:
        body = b"".join(content[path].splitlines()[1:-1]) or content[path]
        holders = [other for other, text in content.items() if body in text.replace(b"\n", b"")]
        assert holders == [path]


def test_keys_are_never_overwritten(trial):
    before = read_all(trial / "keys")
    new = make_keys(trial / "keys", ["127.0.0.1"], ["node-1", "node-2"])
    assert new == []
    assert read_all(trial / "keys") == before
    with pytest.raises(MoietyError, match="a new or an empty one"):
        write_app(trial, ["127.0.0.1"])
    assert read_all(trial / "keys") == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower uses what its libraries have given up
def test_what_flower_packs_holds_no_key(trial):
    """Flower's own builder of app bundles is asked what it would send to every node."""
    from flwr.cli.build import build_fab_from_disk

    packed = build_fab_from_disk(trial / "app")
    with zipfile.ZipFile(io.BytesIO(packed)) as bundle:
        names = set(bundle.namelist())
        text = b"".join(bundle.read(name) for name in names)
    assert names == {"pyproject.toml", "federation.py", "federation.toml", ".info/CONTENT"}
    assert b"PRIVATE KEY" not in text
    for path, content in read_all(trial / "keys").items():
        if path.name != ".gitignore":
            assert content.strip() not in text


def test_flower_takes_the_keys(trial):
    """Flower's own readers of key files, and the checks that it makes."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    for node in ("node-1", "node-2"):
        public = try_load_public_key(trial / "keys" / node / "node.pub")
        private = load_ssh_private_key((trial / "keys" / node / "node.key").read_bytes(), None)
        assert public_key_to_bytes(private.public_key()) == public


def shake_hands(folder: Path, name: str, root: Path) -> None:
    """A handshake of TLS in memory, by OpenSSL: a client that trusts ``root`` and wants to talk to ``name``."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
    client = ssl.create_default_context(cafile=str(root))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["127.0.0.1", "fed.example.org"])
def test_the_certificate_is_good_for_the_addresses_asked_for(trial, name):
    shake_hands(trial / "keys", name, trial / "keys" / "node-1" / "ca.crt")


def test_another_address_or_authority_is_refused(trial, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake_hands(trial / "keys", "other.example.org", trial / "keys" / "node-1" / "ca.crt")
    make_keys(tmp_path / "others", ["127.0.0.1"], [])
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(trial / "keys", "127.0.0.1", tmp_path / "others" / "ca" / "ca.crt")


def test_certificates_end_after_thirty_days(trial):
    ends = []
    for path in ("ca/ca.crt", "server/server.crt"):
        certificate = x509.load_pem_x509_certificate((trial / "keys" / path).read_bytes())
        ends.append(certificate.not_valid_after_utc)
        lifetime = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=29, hours=23) < lifetime <= datetime.timedelta(days=30)
    assert ends[1] <= ends[0]  # a certificate must not outlive the authority that signed it


def test_without_tls_it_says_so_loudly(tmp_path, capsys):
    assert main(["deploy", "init", str(tmp_path / "open"), "--address", "localhost", "--insecure"]) == 0
    assert "INSECURE" in capsys.readouterr().err
    readme = (tmp_path / "open" / "README.md").read_text()
    assert "WITHOUT TLS AND AUTHENTICATION" in readme
    assert not (tmp_path / "open" / "keys").exists()
    assert "--ssl" not in readme


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "NEW"], "`address` must be given"),
        (["init", "NEW", "--address", "https://x"], "without a port, got https://x"),
        (["init", "NEW", "--address", "fe80::1%eth0"], "without a port, got fe80::1%eth0"),
        (["init", "NEW", "--address", "x", "--nodes", "0"], "`nodes` must be >= 1"),
        (["init", "NEW", "--address", "x", "--port", "70000"], "`port` must be <= 65535"),
        (["init", "NEW", "--address", "x", "--file", "absent.toml"], "absent.toml"),
        (["keys", "NEW", "--address", "x"], "a folder of moiety deploy init"),
        (["init", "NEW", "--address", "x", "--file", "run = 3"], "`data` must be a table of the file"),
        (["init", "NEW", "--address", "x", "--file", DEFAULT + "[deploy]\nleast = 0\n"], "`least` must be >= 1"),
        (["init", "NEW", "--address", "x", "--file", DEFAULT.replace("fedalt", "fedalto")], "fedalt"),
        (["init", "NEW", "--address", "x", "--file", "[run"], "TOML"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    where, file = tmp_path / "new", tmp_path / "declared.toml"
    if words[-1] != "absent.toml" and "--file" in words:
        file.write_text(words[-1])
        words = [*words[:-1], str(file)]
    assert main(["deploy", *(str(where) if word == "NEW" else word for word in words)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not where.exists()


def test_addresses_are_asked_for_on_a_terminal(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("10.0.0.1 fed.example.org\n"))
    assert main(["deploy", "init", str(tmp_path / "asked"), "--nodes", "1"]) == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "asked/keys/server/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == ["10.0.0.1", "fed.example.org"]


def test_a_key_is_replaced_by_moving_its_folder_away(tmp_path, capsys):
    """As the README says it: only what is missing is made, signed by the same authority."""
    where = tmp_path / "trial"
    assert main(["deploy", "init", str(where), "--address", "127.0.0.1", "--nodes", "1"]) == 0
    before = read_all(where / "keys")
    (where / "keys" / "node-1").rename(tmp_path / "old-node")
    (where / "keys" / "server").rename(tmp_path / "old-server")
    capsys.readouterr()
    assert main(["deploy", "keys", str(where), "--address", "127.0.0.1", "--nodes", "2"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ("server", "node-1", "node-2"))
    after = read_all(where / "keys")
    paths = {path.relative_to(where / "keys").as_posix() for path in after if before.get(path) != after[path]}
    assert {name.split("/")[0] for name in paths} == {"server", "node-1", "node-2"}
    shake_hands(where / "keys", "127.0.0.1", tmp_path / "old-node" / "ca.crt")  # nodes that are there need nothing new
    assert main(["deploy", "keys", str(where), "--address", "127.0.0.1", "--nodes", "2"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert read_all(where / "keys") == after


def test_certificates_that_ended_are_replaced_and_keys_of_nodes_stay(tmp_path, capsys, monkeypatch):
    """As the README says it. Authority and server end on one day, so a new key of the server alone would not do."""
    where, words = tmp_path / "trial", ["--address", "127.0.0.1", "--nodes", "1"]

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) - datetime.timedelta(days=31)

    with monkeypatch.context() as patch:
        patch.setattr(key_files, "datetime", SimpleNamespace(**{**vars(datetime), "datetime": Earlier}))
        assert main(["deploy", "init", str(where), *words]) == 0
    keys, before = where / "keys", read_all(where / "keys")
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(keys, "127.0.0.1", keys / "node-1" / "ca.crt")
    capsys.readouterr()
    assert main(["deploy", "keys", str(where), "--address", "127.0.0.1", "--nodes", "-1"]) == 2
    assert capsys.readouterr().err == "moiety: `nodes` must be >= 1, got -1.\n"
    command = ["deploy", "keys", str(where), *words]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`ca.crt` must be valid, got one that ended on" in line
    assert "Move keys/ca and keys/server away" in line
    monkeypatch.setenv("FLWR_HOME", str(where / "flwr"))
    monkeypatch.setattr(attempts, "call", lambda command: pytest.fail("flwr would ask for a connection in vain"))
    monkeypatch.chdir(where)
    assert main(["deploy", "run", "app"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`ca.crt` must be valid, got one that ended on" in line
    (keys / "ca").rename(tmp_path / "ca")
    assert main(command) == 0  # the server's certificate is that of the authority before
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"Made {keys / 'ca'}"
    assert second.startswith(f"{keys / 'server' / 'server.crt'} is not of {keys / 'ca'}: move {keys / 'server'} away")
    (keys / "server").rename(tmp_path / "server")
    assert main(command) == 0
    assert f"{keys / 'node-1' / 'ca.crt'} is not of {keys / 'ca'}: copy" in capsys.readouterr().out
    after = read_all(keys)
    assert {path: after[path] for path in before if path.parent.name == "node-1"} == {
        path: content for path, content in before.items() if path.parent.name == "node-1"
    }
    (keys / "node-1" / "ca.crt").write_bytes((keys / "server" / "ca.crt").read_bytes())
    shake_hands(keys, "127.0.0.1", keys / "node-1" / "ca.crt")
    assert main(command) == 0
    assert capsys.readouterr().out == "All keys of the server and 1 node are there; nothing was changed.\n"
