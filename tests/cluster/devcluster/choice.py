"""The choice of a cluster: CLUSTER, else the one that is up, else one that this machine can run."""

import os
import shutil
import sys
from enum import StrEnum

from . import state
from .steps import ClusterError, succeeds


class Flavour(StrEnum):
    """A kind of cluster."""

    KIND = "kind"
    LOCAL = "local"
    CURRENT = "current"


def choose(requested: str, recorded: str, *, docker_answers: bool, root_on_linux: bool) -> Flavour:
    """Choose a flavour; an empty string is a wish not expressed.

    Args:
        requested: What the user asks for.
        recorded: What is up.
        docker_answers: A Docker engine can be reached.
        root_on_linux: This is a Linux and the user may do everything on it.

    Raises:
        ClusterError: The wish names no flavour, or another than the one that is up.
    """
    wish = requested or recorded
    if recorded and wish not in {recorded, Flavour.CURRENT}:
        raise ClusterError(f"CLUSTER={wish}: a {recorded} cluster is up; take it down first")
    if wish:
        try:
            return Flavour(wish)
        except ValueError as error:
            flavours = ", ".join(Flavour)
            raise ClusterError(f"CLUSTER: expected one of {flavours}, got {wish!r}") from error
    return Flavour.LOCAL if root_on_linux and not docker_answers else Flavour.KIND


def flavour() -> Flavour:
    """Choose from the environment, the record of `up` and this machine."""
    return choose(
        os.environ.get("CLUSTER", ""),
        state.flavour(),
        docker_answers=shutil.which("docker") is not None and succeeds("docker", "info"),
        root_on_linux=sys.platform == "linux" and os.geteuid() == 0,
    )
