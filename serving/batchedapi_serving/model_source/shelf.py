"""A folder of models that were fetched, each of them whole, which replicas may share."""

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from batchedapi_serving.model_source.download import CONTENT

log = logging.getLogger(__package__)


def entry_of(shelf: Path, uri: str, version: str) -> Path:
    """Where the model has its place whose source and version these are."""
    return shelf / hashlib.sha256(f"{uri}\n{version}".encode()).hexdigest()


def kept(entry: Path, fill: Callable[[Path], None]) -> Path:
    """The model in the folder `entry`: the first who comes fills it, and others wait for that.

    The folder has its name once all of it is on disk. Until then it is a staging folder beside it,
    which the next who comes fills further.

    Args:
        entry: Has one file or folder, the model.
        fill: Brings what is missing into the folder CONTENT of the staging folder that it is given.

    Raises:
        OSError: the folder cannot be written to, or knows no locks.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    staging = entry.with_suffix(".part")
    with _locked(entry.with_suffix(".lock")):
        if not entry.exists():
            staging.mkdir(exist_ok=True)
            fill(staging)
            _sync(staging / CONTENT)
            (staging / CONTENT).rename(entry)
            _sync_one(entry.parent)
            shutil.rmtree(staging)
    return taken(entry)


def taken(entry: Path) -> Path:
    """The model of an entry that is whole.

    Raises:
        OSError: the folder cannot be written to.
    """
    os.utime(entry)  # tells those that are used from those to be removed
    return model_in(entry)


def model_in(folder: Path) -> Path:
    """The one file or folder in it."""
    (model,) = folder.iterdir()
    return model


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only one in the block, of all who share the folder; who ends, however, is out."""
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another replica fetches the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
