"""Builds the product's images, when their inputs changed, and loads them into the cluster."""

import tomllib
from pathlib import Path
from typing import Final, assert_never

from . import inputs, kind, local, paths, state, tools
from .choice import Flavour
from .engines import Buildah, Docker, Recipe
from .inputs import Image
from .steps import ClusterError, run, step

SUITE: Final = "bookworm"
BASE_PACKAGES: Final = "python3,python3-venv,ca-certificates"
BASE: Final = f"localhost/batchedapi-base:{SUITE}"
"""Stands in for python:3.12-slim where no registry can be reached; Python 3.11."""
BUILD_PACKAGES: Final = f"{BASE_PACKAGES},gcc,libc6-dev,python3-dev"
BUILD: Final = f"localhost/batchedapi-build:{SUITE}"
"""Stands in for python:3.12, likewise."""
REDIS: Final = "docker.io/library/redis:7"
"""What stands in for the registry's, for the example that brings a Redis of its own."""
DEBIAN_DOCKERFILE: Final = """\
FROM scratch
ADD {archive} /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["{command}"]
"""
LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def labels(fingerprint: str) -> dict[str, str]:
    """Give the labels that change from build to build; the others stand in the Dockerfile."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    found = {
        "org.opencontainers.image.version": project["version"],
        "dev.batchedapi.inputs": fingerprint,
    }
    try:
        revision = run("git", "rev-parse", "HEAD", cwd=paths.ROOT).strip()
    except ClusterError:  # sources without their history: an archive, or nothing committed yet
        return found
    return found | {"org.opencontainers.image.revision": revision}


def build_and_load(flavour: Flavour, image: Image, *, force: bool) -> None:
    """Bring an image up to date in a cluster.

    Args:
        flavour: Of the cluster.
        image: Which image.
        force: Build and load even if the inputs are those of the last time.
    """
    match flavour:
        case Flavour.LOCAL:
            for_local(image, force=force)
        case Flavour.KIND:
            for_kind(image, force=force)
        case Flavour.CURRENT:
            with step(f"{image.tag}: docker build"), kind.remedied():
                Docker().build(Recipe(image, base="", labels=labels(inputs.fingerprint(image, ""))))
            print(f"{image.tag} is in this machine's Docker engine only: push it for the cluster")
        case _:
            assert_never(flavour)


def for_local(image: Image, *, force: bool) -> None:
    """Build with buildah and import into the node's containerd."""
    if not local.ready():
        raise ClusterError("no local cluster answers; run tests/cluster/up first")
    fingerprint = inputs.fingerprint(image, BASE)
    if state.loaded(image.name) == fingerprint and not force:
        print(f"{image.tag} is up to date ({fingerprint})")
        return
    archive = archive_of(image, fingerprint, force=force)
    with step(f"{image.tag}: load ({archive.stat().st_size / 1e6:.0f} MB)"):
        local.load(archive)
    state.note_loaded(image.name, fingerprint)


def archive_of(image: Image, fingerprint: str, *, force: bool = False) -> Path:
    """Build an image with buildah, unless these inputs were built; the archive to load."""
    archive = paths.CACHE / "images" / f"{image.name}-{fingerprint}.tar"
    with state.one_at_a_time("images"):
        if archive.exists() and not force:
            return archive
        buildah = Buildah()
        make_bases(buildah)
        with step(f"{image.tag}: build"):
            buildah.build(Recipe(image, BASE, BUILD, labels(fingerprint)))
        with step(f"{image.tag}: write archive"):
            archive.parent.mkdir(parents=True, exist_ok=True)
            for old in archive.parent.glob(f"{image.name}-*"):
                old.unlink()
            buildah.archive(image.tag, archive)
    return archive


def for_kind(image: Image, *, force: bool) -> None:
    """Build with docker, which knows by itself what changed, and copy into the kind node."""
    if not kind.healthy():
        raise ClusterError("no kind cluster answers; run tests/cluster/up first")
    fingerprint = inputs.fingerprint(image, "")
    if state.loaded(image.name) == fingerprint and not force:
        print(f"{image.tag} is up to date ({fingerprint})")
        return
    with step(f"{image.tag}: docker build"), kind.remedied():
        Docker().build(Recipe(image, base="", labels=labels(fingerprint)))
    with step(f"{image.tag}: kind load"):
        kind.load(image.tag)
    state.note_loaded(image.name, fingerprint)


def make_bases(buildah: Buildah) -> None:
    """Make the images that others are built from and in, unless they are there."""
    debian_image(buildah, BASE, BASE_PACKAGES, "python3", paths.CACHE / f"base-{SUITE}.tar")
    debian_image(buildah, BUILD, BUILD_PACKAGES, "python3", paths.CACHE / f"build-{SUITE}.tar")


def redis_archive() -> Path:
    """Make an image of Debian's Redis, unless it is there; the archive to load."""
    archive = paths.CACHE / "images" / f"redis-{SUITE}.tar"
    with state.one_at_a_time("images"):
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            buildah, files = Buildah(), paths.CACHE / f"redis-{SUITE}.tar"
            debian_image(buildah, REDIS, "redis-server", "redis-server", files)
            buildah.archive(REDIS, archive)
    return archive


def debian_image(buildah: Buildah, tag: str, packages: str, command: str, archive: Path) -> None:
    """Make an image out of Debian packages, unless it is there; `archive` keeps its files."""
    if buildah.has(tag):
        return
    tools.debian_packages()
    with step(f"{tag}: mmdebstrap {SUITE}"):
        if not archive.exists():
            bootstrap(archive, packages)
        dockerfile = DEBIAN_DOCKERFILE.format(archive=archive.name, command=command)
        buildah.build_from_text(tag, dockerfile, context=archive.parent)


def bootstrap(archive: Path, packages: str) -> None:
    """Make the archive of a small Debian with some packages; it appears when it is whole."""
    partial = archive.with_name(f"partial-{archive.name}")
    excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    include = f"--include={packages}"
    run("mmdebstrap", "--variant=minbase", include, *excludes, SUITE, partial)
    partial.rename(archive)
