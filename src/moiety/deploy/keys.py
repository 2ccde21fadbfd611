"""Keys and certificates for a trial: one authority, one server, and a key for each node.

Each party has a folder of its own, which holds all that it needs and nothing that is another's:

    keys/.gitignore        keeps git away from everything below
    keys/ca/               the authority's key: it signs the server's certificate, and goes nowhere
    keys/server/           certificate and key of the SuperLink, the secret of its executor
    keys/node-1/           key of a SuperNode, the secret of its executor

Nothing here is ever overwritten or printed. A real federation takes its certificates from its own authority.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moiety.errors import must, whole
from moiety.files import aside_of, make_folder, new_folder, report_failure, report_unreadable, write_file

DAYS = 30
"""How long certificates of a trial are valid."""
CA, SERVER = "ca", "server"
CA_CERTIFICATE, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
NODE_KEY, NODE_PUBLIC, SECRET = "node.key", "node.pub", "executor.secret"
RENEW = "Move keys/ca and keys/server away and make both anew; README.md says what nodes need then."
_CURVE = ec.SECP384R1()  # of the curves that Flower takes for nodes
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class Authority(NamedTuple):
    """The certificate and key that sign others."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def read_addresses(addresses: Iterable[str]) -> list[x509.GeneralName]:
    """The addresses of a server as its certificate names them: IP addresses and host names, without a port.

    >>> [str(name.value) for name in read_addresses(["192.168.0.7", "fed.example.org"])]
    ['192.168.0.7', 'fed.example.org']
    >>> read_addresses(["fed.example.org:9092"])
    Traceback (most recent call last):
    moiety.errors.MoietyError: `address` must be a host name or an IP address without a port, got fed.example.org:9092.
    """
    names: list[x509.GeneralName] = []
    for address in addresses:
        try:
            if "%" in address:  # a zone is of one machine alone, and no certificate has one
                raise ValueError
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            fits = _HOST.fullmatch(address) is not None and len(address) <= 253
            must(fits, "address", "a host name or an IP address without a port", address or "nothing")
            names.append(x509.DNSName(address))
    must(len(names) > 0, "address", "given", "nothing", "It is where nodes reach the server: --address HOST.")
    return names


def make_keys(folder: Path, addresses: Sequence[str], nodes: Sequence[str], days: int = DAYS) -> list[Path]:
    """Make whatever of authority, server and ``nodes`` is not there yet; the folders that are new.

    A folder that is there stays as it is. To replace a key, move its folder away and call this again.

    Args:
        folder: where ``ca``, ``server`` and a folder for each node go.
        addresses: host names or IP addresses under which nodes reach the server.
        nodes: names of the nodes' folders.
        days: how long certificates are valid; an authority that is there keeps its own end.
    """
    whole("days", days, 1, 3650)
    names = read_addresses(addresses)
    for node in nodes:
        fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", node) is not None and node not in (CA, SERVER)
        must(fits, "node", "a plain name of letters, digits, - and _, other than ca and server", node)
    make_folder(folder)
    if not (folder / ".gitignore").exists():
        write_file(folder / ".gitignore", b"*\n")
    new = []
    if not (folder / CA).exists():
        new.append(_write(folder / CA, _make_authority(days)))
    authority = _read_authority(folder / CA)
    root = authority.certificate.public_bytes(serialization.Encoding.PEM)
    if not (folder / SERVER).exists():
        new.append(_write(folder / SERVER, {CA_CERTIFICATE: root, **_make_server(authority, names, days)}))
    for node in nodes:
        if not (folder / node).exists():
            new.append(_write(folder / node, {CA_CERTIFICATE: root, **_make_node(node)}))
    return new


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder with these files, all or none, for its owner alone."""
    with report_failure(folder, "keys"), new_folder(folder, aside_of(folder)) as aside:
        for name, content in files.items():
            write_file(aside / name, content)
    return folder


def _make_authority(days: int) -> dict[str, bytes]:
    key = ec.generate_private_key(_CURVE)
    name = _name("moiety trial authority")
    builder = _begin(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA384())
    return {"ca.key": _pem(key), CA_CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM)}


def _read_authority(folder: Path) -> Authority:
    with report_unreadable(folder, RENEW):
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    fits = isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()
    must(fits, "ca.key", "the key of ca.crt", f"another at {folder}")
    check_end(certificate, folder / CA_CERTIFICATE)
    return Authority(certificate, key)  # type: ignore[arg-type]


def check_end(certificate: x509.Certificate, path: Path) -> None:
    """Raise where a certificate is no longer valid."""
    end = certificate.not_valid_after_utc
    is_over = end <= datetime.datetime.now(datetime.UTC)
    must(not is_over, path.name, "valid", f"one that ended on {end:%Y-%m-%d} at {path}", RENEW)


def explain_strangers(folder: Path, nodes: Sequence[str]) -> list[str]:
    """What to do about certificates that are not of the authority, such as those of the one before it."""
    authority, lines = _read_authority(folder / CA).certificate, []
    own = folder / SERVER / CERTIFICATE
    with report_unreadable(own.parent, "Move it away to make another."):
        certificate = x509.load_pem_x509_certificate(own.read_bytes())
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        hint = f"move {own.parent} away and give this command again, unless it is of an authority of your own"
        lines.append(f"{own} is not of {folder / CA}: {hint}.")
    root = (folder / CA / CA_CERTIFICATE).read_bytes()
    for path in (folder / node / CA_CERTIFICATE for node in nodes):
        if not path.is_file() or path.read_bytes() != root:
            hint = f"copy {own.parent / CA_CERTIFICATE} over it, on the node too"
            lines.append(f"{path} is not of {folder / CA}: {hint}.")
    return lines


def _make_server(authority: Authority, names: list[x509.GeneralName], days: int) -> dict[str, bytes]:
    key = ec.generate_private_key(_CURVE)
    issuer = authority.certificate
    builder = _begin(_name("moiety trial server"), issuer.subject, key.public_key(), days, issuer.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = builder.add_extension(signer, critical=False).sign(authority.key, hashes.SHA384())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return {CERTIFICATE: pem, KEY: _pem(key), SECRET: _secret()}


def _make_node(name: str) -> dict[str, bytes]:
    """A node shows who it is by a key pair; the server is told the public half (``flwr supernode register``)."""
    key = ec.generate_private_key(_CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {NODE_KEY: private, NODE_PUBLIC: public + f" {name}\n".encode(), SECRET: _secret()}


def _secret() -> bytes:
    return secrets.token_hex(32).encode()


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    """A certificate that is valid for ``days``, but no longer than until ``latest``."""
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of nodes may be behind
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
