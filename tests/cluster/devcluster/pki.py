"""Certificates and kubeconfig files of the local cluster, made with openssl."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .steps import run

DAYS: Final = "365"
BARE_CONFIG: Final = "[req]\ndistinguished_name = name\n[name]\n"
"""Keeps the machine's own openssl.cnf from adding extensions."""
CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Identity:
    """A key pair and what its certificate says."""

    name: str
    """Of the two files, NAME.key and NAME.crt."""
    subject: str
    """Kubernetes reads CN as the user and O as its group."""
    addresses: str = ""
    """Subject alternative names, as openssl writes them; for servers."""


def make_authority(folder: Path) -> None:
    """Make the certificate authority, and the keys that sign the tokens of service accounts."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / "openssl.cnf").write_text(BARE_CONFIG)
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE")
    request = ("openssl", "req", "-x509", "-config", "openssl.cnf", "-days", DAYS, *CURVE)
    names = ("-subj", "/CN=batchedapi development", "-keyout", "ca.key", "-out", "ca.crt")
    run(*request, *names, *extensions, cwd=folder)
    run("openssl", "genpkey", "-algorithm", "EC", *CURVE[2:4], "-out", "sa.key", cwd=folder)
    run("openssl", "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub", cwd=folder)


def issue(folder: Path, identity: Identity) -> None:
    """Make the key of an identity and its certificate, signed by the authority of the folder."""
    extensions = ["basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
    if identity.addresses:
        extensions.append(f"subjectAltName={identity.addresses}")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-days", DAYS)
    files = ("-keyout", f"{identity.name}.key", "-out", f"{identity.name}.crt")
    request = ["openssl", "req", "-x509", "-config", "openssl.cnf", *CURVE, *signed, *files]
    for extension in extensions:
        request += ["-addext", extension]
    run(*request, "-subj", identity.subject, cwd=folder)


def kubeconfig(folder: Path, identity: Identity, server: str) -> str:
    """Write the kubeconfig of an identity, certificates included; JSON is YAML too."""
    cluster = {"server": server, "certificate-authority-data": encoded(folder / "ca.crt")}
    user = {
        "client-certificate-data": encoded(folder / f"{identity.name}.crt"),
        "client-key-data": encoded(folder / f"{identity.name}.key"),
    }
    context = {"cluster": "batchedapi", "user": identity.name}
    config: Mapping[str, object] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "batchedapi", "cluster": cluster}],
        "users": [{"name": identity.name, "user": user}],
        "contexts": [{"name": "batchedapi", "context": context}],
        "current-context": "batchedapi",
    }
    return json.dumps(config, indent=1)


def encoded(file: Path) -> str:
    """Give a file's content in base64, as kubeconfig files hold it."""
    return base64.b64encode(file.read_bytes()).decode()
