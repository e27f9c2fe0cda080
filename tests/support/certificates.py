"""A private authority, and certificates that it signs, as openssl makes them."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Files in PEM."""

    authority: Path
    """What a client trusts: the value of SSL_CERT_FILE."""
    server: Path
    """Key and certificate of the server, in one file."""


def make_certificates(folder: Path, names: Sequence[str] = ("DNS:localhost",)) -> Certificates:
    """For a server of these names (`DNS:...`, `IP:...`), valid for two days."""
    openssl(folder, "req", "-x509", *_KEY, "-subj", "/CN=authority", "-days", "2",
            "-keyout", "authority.key", "-out", "authority.pem")  # fmt: skip
    openssl(folder, "req", *_KEY, "-subj", "/CN=server", "-keyout", "server.key", "-out", "csr")
    (folder / "names").write_text(f"subjectAltName={','.join(names)}\n")
    openssl(folder, "x509", "-req", "-in", "csr", "-CA", "authority.pem", "-CAkey",
            "authority.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
            "-out", "server.crt")  # fmt: skip
    server = folder / "server.pem"
    server.write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return Certificates(folder / "authority.pem", server)


def openssl(folder: Path, *arguments: str) -> None:
    """Run it in a folder."""
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
