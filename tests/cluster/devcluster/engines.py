"""Builds images: buildah, which needs no daemon, or docker."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from . import inputs, paths
from .steps import run

REGISTRY: Final = "docker.io/library/"
"""What containerd puts before a name without a registry; buildah would put localhost/."""
ACCEPT_ALL: Final = json.dumps({"default": [{"type": "insecureAcceptAnything"}]})
"""Signature policy: what is built here is signed by nobody."""


@dataclass(frozen=True)
class Recipe:
    """One build."""

    image: inputs.Image
    base: str
    """Given as BASE_IMAGE; empty for the Dockerfile's own."""
    build: str = ""
    """Given as BUILD_IMAGE, likewise."""
    labels: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Give the arguments that buildah and docker have in common."""
        words = [f"--build-arg=PART={self.image.part}"]
        words += [f"--build-arg=BASE_IMAGE={self.base}"] if self.base else []
        words += [f"--build-arg=BUILD_IMAGE={self.build}"] if self.build else []
        return words + [f"--label={key}={value}" for key, value in self.labels.items()]


@contextmanager
def secrets(settings: inputs.PipSettings) -> Iterator[list[str]]:
    """Give the arguments that hand pip's settings to a build; they stay out of the image."""
    with tempfile.TemporaryDirectory() as folder:
        words = []
        if settings.config:
            config = Path(folder) / "pip.conf"
            config.write_text(settings.config)
            words += ["--secret", f"id=pip.conf,src={config}"]
        if settings.certificates:
            words += ["--secret", f"id=pip-cert,src={settings.certificates}"]
        yield words


class Docker:
    """The Docker engine."""

    def build(self, recipe: Recipe) -> None:
        """Build an image of the product and give it its tag."""
        with secrets(inputs.pip_settings_here()) as words:
            build = ("docker", "build", "-t", recipe.image.tag, *recipe.arguments(), *words)
            run(*build, paths.ROOT, env={"DOCKER_BUILDKIT": "1"})


class Buildah:
    """Buildah with a store of its own under .cache."""

    def __init__(self) -> None:
        store = paths.CACHE / "buildah"
        store.mkdir(parents=True, exist_ok=True)
        (store / "policy.json").write_text(ACCEPT_ALL)
        roots = ("--root", str(store / "root"), "--runroot", str(store / "run"))
        self.command: Final = ("buildah", *roots, "--storage-driver", "overlay")
        self.policy: Final = ("--signature-policy", str(store / "policy.json"))

    def bud(self, *arguments: str | os.PathLike[str]) -> None:
        """Build by a Dockerfile; its commands run in a chroot, on this machine's network."""
        flags = ("--isolation", "chroot", "--network", "host", "--layers", "--format", "docker")
        run(*self.command, "bud", *self.policy, *flags, *arguments)

    def build(self, recipe: Recipe) -> None:
        """Build an image of the product and give it its tag."""
        settings = inputs.pip_settings_here()
        folder = ("-v", f"{settings.folder}:{settings.folder}:ro") if settings.folder else ()
        tag = f"{REGISTRY}{recipe.image.tag}"
        with secrets(settings) as words:
            self.bud("-t", tag, *recipe.arguments(), *words, *folder, paths.ROOT)

    def build_from_text(self, tag: str, dockerfile: str, *, context: Path) -> None:
        """Build by the text of a Dockerfile."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "Dockerfile"
            file.write_text(dockerfile)
            self.bud("-t", tag, "-f", file, context)

    def has(self, tag: str) -> bool:
        """Say whether an image is in the store."""
        images = json.loads(run(*self.command, "images", "--json"))
        return any(tag in (image.get("names") or []) for image in images)

    def archive(self, tag: str, file: Path) -> None:
        """Write an image as a docker-archive; the file appears when it is whole."""
        partial = file.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        run(*self.command, "push", *self.policy, tag, f"docker-archive:{partial}:{tag}")
        partial.rename(file)
