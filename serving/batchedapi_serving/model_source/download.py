"""A model's files on their way to disk: in pieces, several at once, each fetched once.

What a try has brought stays, in a folder of its own, and the next try goes on from there: of this
process or of another one.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from batchedapi_serving.errors import LoadError

log = logging.getLogger(__package__)
PIECE: Final = 16 << 20
"""Bytes that one connection fetches; what the end of this process costs each of them at most."""
CONNECTIONS: Final = 8
CHUNK: Final = 1 << 18
"""Bytes read at once; what a cut costs each connection at most."""
SPARE: Final = 64 << 20
"""Bytes that are left free on the disk: sockets, logs and temporary files need some."""
TIMEOUT_SECONDS: Final = 30.0
"""Without a byte; a whole download may take as long as it likes."""
PROGRESS_SECONDS: Final = 10.0
"""Between two lines of the log."""
CONTENT: Final = "content"
"""In a staging folder: the files, at their places."""
_MARKS: Final = "marks"
"""In a staging folder: what is on disk."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DownloadError(Exception):
    """The model is not here, for a reason that trying again does not change."""

    @classmethod
    def without_client(cls, scheme: str, package: str) -> "DownloadError":
        """The error where the `package` that reads a scheme is not installed; it is an extra."""
        return cls(
            f"{scheme}:// needs {package}: pip install 'batchedapi[{scheme}]'; in a cluster into"
            " spec.predictor.image"
        )


class TransientError(Exception):
    """Trying again may help."""

    def __init__(self, what: str, *, progressed: bool = False) -> None:
        """Say what failed.

        Args:
            what: For the log.
            progressed: More of the model is on disk than before the try.
        """
        super().__init__(what)
        self.progressed = progressed


class Digest(NamedTuple):
    """A digest by which the source itself names a file."""

    algorithm: str
    """As hashlib calls it."""
    hexadecimal: str
    head: bytes = b""
    """Hashed before the file: git does."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model, where it comes from."""

    path: str
    """Where it goes: relative, with forward slashes, the model's name first."""
    size: int | None
    """Bytes; None: the source does not tell."""
    read: Callable[[int, int | None], Iterable[bytes]]
    """Bytes from a place on, to another one that is not included. None: to the end.

    Raises DownloadError and TransientError.
    """
    ranged: bool = True
    """Whether it can be read from the middle, and is then still the same file."""
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model as its source has it now."""

    version: str | None
    """Another content has another one; None: the source does not tell."""
    files: tuple[RemoteFile, ...]
    unpack: Callable[[Path], None] | None = None
    """Makes the model of the files, in the folder that they are in; None: they are it."""


class _Piece(NamedTuple):
    number: int
    """Of its file."""
    file: RemoteFile
    target: Path
    start: int
    end: int | None

    @property
    def size(self) -> int:
        return 0 if self.end is None else self.end - self.start


class _Marks:
    """Which bytes of which file are on disk: a line for each stretch, of one width."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        text = path.read_text() if path.exists() else ""
        found = re.findall(r"^(\d{6}) (\d{15}) (\d{15})$", text, re.MULTILINE)  # else half a line
        self.stretches = sorted(tuple(map(int, one)) for one in found)
        self.size = sum(end - start for _, start, end in self.stretches)
        """Bytes."""

    def add(self, number: int, start: int, end: int) -> None:
        with self._lock, self._path.open("a") as marks:
            marks.write(f"{number:06d} {start:015d} {end:015d}\n")
            self.size += end - start


def safe_name(name: str) -> str:
    """A file name of a stranger that stays inside the folder it is put into."""
    return "model" if name in {"", ".", ".."} or "\0" in name else name


def is_in(path: str, folder: str) -> bool:
    """Whether it is the file or folder of that name, or below it; of all if the name is empty."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def placed(path: str, folder: str, name: str) -> str:
    """Where a file goes that is_in: the name of the model, then the rest of its path.

    Args:
        path: In its source.
        folder: What of the source is the model; empty: all.
        name: Of the source, for a model that is all of it.
    """
    inside = path.removeprefix(folder).lstrip("/")
    own = safe_name((folder or name).rpartition("/")[2])
    return f"{own}/{inside}" if inside else own


def safe_path(path: str) -> PurePosixPath:
    """A path of a stranger, once it was seen to stay inside the folder it is put into.

    Raises:
        DownloadError: it leads elsewhere.
    """
    parts = path.split("/")
    if {"", ".", ".."} & {*parts} or "\0" in path:
        raise DownloadError(f"expected paths of files without '..', got {path!r}")
    return PurePosixPath(path)


def check_room(folder: Path, size: int) -> None:
    """See whether so many bytes fit.

    Raises:
        DownloadError: they do not.
    """
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise DownloadError(
            f"expected room for {size} bytes in {folder}, got {max(0, free - SPARE)}; set TMPDIR to"
            " a larger disk, or raise the pod's ephemeral storage or the claim of"
            " spec.predictor.model.cache"
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Tell errors of the disk as errors of the download.

    Raises:
        DownloadError: it is full, or may not be written to.
        TransientError: anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DownloadError(
                f"the disk of {folder} is full ({error.strerror}); set TMPDIR to a larger one, or"
                " raise the pod's ephemeral storage or the claim of spec.predictor.model.cache"
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise DownloadError(
                f"{folder} cannot be written to ({error.strerror}); give the replica's user the"
                " right to (fsGroup of the pod)"
            ) from error
        raise TransientError(f"{type(error).__name__}: {error}") from error


def fetch(files: tuple[RemoteFile, ...], staging: Path) -> None:
    """Bring the files into the folder CONTENT of `staging`, but for the pieces that are there.

    Args:
        files: In the same order in each try.
        staging: Exists.

    Raises:
        DownloadError: a source says no, the disk is too small, or a path leads elsewhere.
        TransientError: timeout, broken connection, or an answer that may pass.
        LoadError: DigestMismatch, of a file whose source says its digest.
    """
    marks = _Marks(staging / _MARKS)
    pieces = [
        piece
        for number, file in enumerate(files)
        for piece in _missing(number, file, _place(file, staging), marks)
    ]
    check_room(staging, sum(piece.size for piece in pieces))
    before = marks.size
    try:
        _fetch_pieces(pieces, marks, sum(file.size or 0 for file in files))
    except TransientError as error:
        raise TransientError(str(error), progressed=marks.size > before) from error
    for file in files:
        if file.digest is not None:
            _check_source_digest(staging / CONTENT / file.path, file.digest)


def _place(file: RemoteFile, staging: Path) -> Path:
    """The file to be filled, of its full size if that is known."""
    target = staging / CONTENT / safe_path(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as opened:
        opened.truncate(file.size or 0)
    return target


def _missing(number: int, file: RemoteFile, target: Path, marks: _Marks) -> Iterator[_Piece]:
    if file.size is None or not file.ranged:
        yield _Piece(number, file, target, 0, file.size)
        return
    place = 0
    there = [(start, end) for one, start, end in marks.stretches if one == number]
    for start, end in (*there, (file.size, file.size)):
        for begin in range(place, start, PIECE):
            yield _Piece(number, file, target, begin, min(begin + PIECE, start))
        place = max(place, end)


def _fetch_pieces(pieces: list[_Piece], marks: _Marks, whole: int) -> None:
    with ThreadPoolExecutor(CONNECTIONS, "download") as pool:
        waiting = {pool.submit(_fetch_piece, piece, marks) for piece in pieces}
        try:
            while waiting:
                ended, waiting = wait(waiting, PROGRESS_SECONDS, FIRST_EXCEPTION)
                log.info("model is coming", extra={"bytes": marks.size, "of": whole})
                for one in ended:
                    one.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _fetch_piece(piece: _Piece, marks: _Marks) -> None:
    """Bring it to disk, and mark as much of it as came."""
    place, limit = piece.start, sys.maxsize if piece.end is None else piece.end
    with disk_errors(piece.target.parent), piece.target.open("r+b") as target:
        target.seek(place)
        try:
            for chunk in piece.file.read(piece.start, piece.end):
                if piece.end is None:
                    check_room(piece.target.parent, len(chunk))
                target.write(chunk[: limit - place])
                place = min(place + len(chunk), limit)
        finally:
            target.flush()
            os.fdatasync(target.fileno())
            if piece.file.ranged:
                marks.add(piece.number, piece.start, place)
    if piece.end is not None and place != piece.end:
        raise TransientError(f"expected {piece.size} bytes, got {place - piece.start}")


def _check_source_digest(path: Path, digest: Digest) -> None:
    with path.open("rb") as opened:
        whole = hashlib.file_digest(opened, lambda: hashlib.new(digest.algorithm, digest.head))
    if (found := whole.hexdigest()) != digest.hexadecimal:
        raise LoadError(
            "DigestMismatch",
            f"spec.predictor.model.uri: {path.name} has the {digest.algorithm} {found}, and its"
            f" source says {digest.hexadecimal}: it is damaged there or on the way",
        )
