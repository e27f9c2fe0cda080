"""The inputs of an image: files, as a hash that says when to build again, and pip's settings."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import paths

TAG: Final = "dev"
PIP_OPTIONS: Final = (
    "cert",
    "default_timeout",
    "extra_index_url",
    "find_links",
    "index_url",
    "proxy",
    "retries",
    "trusted_host",
)
"""Of pip, about where packages come from: the build needs them as this machine does."""
CERTIFICATES_IN_BUILD: Final = "/run/secrets/pip-cert"
"""Where the Dockerfile mounts the certificates that PIP_CERT names."""


@dataclass(frozen=True)
class Image:
    """An image of the product."""

    part: str
    """Folder of its sources; the Dockerfile's PART."""

    @property
    def name(self) -> str:
        """Name without tag."""
        return f"batchedapi-{self.part}"

    @property
    def sources(self) -> tuple[str, ...]:
        """The image's sources: files and folders under the root of the repository."""
        return (*COMMON, f"requirements/{self.part}.txt", "core", self.part)

    @property
    def tag(self) -> str:
        """Name with tag, as manifests write it."""
        return f"{self.name}:{TAG}"


COMMON: Final = (
    "Dockerfile",
    "pyproject.toml",
    "requirements/build.txt",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    ".dockerignore",
)
IMAGES: Final = {part: Image(part) for part in ("serving", "operator")}


def source_files(image: Image) -> list[Path]:
    """List the files an image is made of, sorted; what Python writes beside sources is left out."""
    found = []
    for source in image.sources:
        path = paths.ROOT / source
        candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in candidates if file.is_file() and "__pycache__" not in file.parts]
    return found


def fingerprint(image: Image, base: str) -> str:
    """Hash names and contents of an image's files and the name of its base, 12 digits."""
    digest = hashlib.sha256(base.encode())
    for file in source_files(image):
        content = file.read_bytes()
        digest.update(f"\n{file.relative_to(paths.ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class PipSettings:
    """How the build reaches packages."""

    config: str
    """Text of a pip.conf; empty when the environment says nothing."""
    certificates: str
    """File of certificates on this machine; empty for pip's own."""
    folder: str
    """Folder of wheels on this machine that the build is to see at the same path, or empty."""


def pip_settings(environ: Mapping[str, str]) -> PipSettings:
    """Translate this machine's PIP_* variables, or as many as still hold inside a build.

    A build sees no files of this machine: certificates go in as a secret, and a folder of wheels
    only if it exists.
    """
    options = {name: environ.get(f"PIP_{name.upper()}", "") for name in PIP_OPTIONS}
    links = options["find_links"]
    folder = links if links and Path(links).is_dir() else ""
    if "://" not in links and not folder:
        options["find_links"] = ""
    certificates = options["cert"]
    if certificates:
        options["cert"] = CERTIFICATES_IN_BUILD
    lines = [f"{name.replace('_', '-')} = {value}" for name, value in options.items() if value]
    config = "\n".join(["[global]", *lines, ""]) if lines else ""
    return PipSettings(config=config, certificates=certificates, folder=folder)


def pip_settings_here() -> PipSettings:
    """Translate the settings of this process's environment."""
    return pip_settings(os.environ)
