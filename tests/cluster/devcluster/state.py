"""The state of a cluster that the commands keep between their runs, and the locks around them."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from . import paths

FLAVOUR: Final = paths.RUN / "flavour"
LOADED: Final = paths.RUN / "loaded"


@contextmanager
def one_at_a_time(what: str = "cluster") -> Iterator[None]:
    """Hold the lock that keeps two commands from making or changing the same thing at once."""
    paths.RUN.mkdir(parents=True, exist_ok=True)
    with (paths.RUN.parent / f"{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another command to be done with {what}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def flavour() -> str:
    """Give the flavour of the cluster that was started last and not taken down, or nothing."""
    return FLAVOUR.read_text() if FLAVOUR.exists() else ""


def note_flavour(flavour: str) -> None:
    """Remember what is being started, so that `down` and `images` need not be told again."""
    FLAVOUR.write_text(flavour)


def loaded(image: str) -> str:
    """Give the fingerprint of what the cluster holds of an image, or nothing."""
    note = LOADED / image
    return note.read_text() if note.exists() else ""


def note_loaded(image: str, fingerprint: str) -> None:
    """Remember what the cluster holds of an image."""
    LOADED.mkdir(parents=True, exist_ok=True)
    (LOADED / image).write_text(fingerprint)


def exists() -> bool:
    """Say whether anything of a cluster is left to forget."""
    return any(entry != paths.LOGS for entry in paths.RUN.glob("*"))


def forget() -> None:
    """Remove everything but the logs, which stay until the next start for a look back."""
    for entry in paths.RUN.glob("*"):
        if entry == paths.LOGS:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
