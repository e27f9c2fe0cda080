"""Programs that others wrote, for tests: from PATH, else out of Debian, by package name."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "debian"


class ProgramUnavailableError(RuntimeError):
    """It is not installed, and apt cannot get it."""


def installed(name: str, package: str) -> str:
    """Path of a program, installed if it is missing and we may.

    Raises:
        ProgramUnavailableError: with the remedy.
    """
    if shutil.which(name) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ("apt-get", "update", "-q"),
            ("apt-get", "install", "-y", "-q", "--no-install-recommends", package),
        ):
            subprocess.run(command, check=False, capture_output=True, env=environment, timeout=600)
    found = shutil.which(name)
    if found is None:
        raise ProgramUnavailableError(f"{name} is not on PATH: apt-get install {package}")
    return found


def unpacked(name: str, package: str) -> str:
    """Path of a program, out of its package without installing it: no service is started.

    Raises:
        ProgramUnavailableError: with the remedy.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    folder = CACHE / package
    if not (there := list(folder.glob(f"usr/*bin/{name}"))):
        folder.mkdir(parents=True, exist_ok=True)
        for command in (("apt-get", "update", "-q"), ("apt-get", "download", package)):
            subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=300)
        for file in folder.glob(f"{package}_*.deb"):
            subprocess.run(("dpkg-deb", "-x", file, folder), check=False, timeout=60)
            file.unlink()
        there = list(folder.glob(f"usr/*bin/{name}"))
    if not there:
        raise ProgramUnavailableError(f"{name} is not on PATH: apt-get install {package}")
    return str(there[0])
