"""Writes what arrives to disk, as long as there is room."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CHUNK: Final = 1 << 20
"""Bytes read at once."""
SPARE: Final = 64 << 20
"""Bytes that are left free on the disk: sockets, logs and temporary files need some."""


class NoRoomError(OSError):
    """The disk cannot take the model."""


class TornError(OSError):
    """The connection ended before all was here."""


def check_room(folder: Path, size: int) -> None:
    """Whether so many bytes fit.

    Raises:
        NoRoomError: they do not.
    """
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise NoRoomError(
            f"expected room for {size} bytes in {folder}, got {max(0, free - SPARE)}; set TMPDIR to"
            " a larger disk, or raise the pod's ephemeral storage"
        )


def store(chunks: Iterable[bytes], target: Path, size: int | None) -> None:
    """Write a download to the file `target`.

    Args:
        chunks: As they arrive.
        target: Its folder exists; what is there is overwritten.
        size: Bytes that were announced; None: unknown.

    Raises:
        NoRoomError: the disk is too small, seen from the announcement or on the way.
        TornError: fewer or more bytes came than were announced.
    """
    if size is not None:
        check_room(target.parent, size)
    written = 0
    with target.open("wb") as file:
        for chunk in chunks:
            if size is None:
                check_room(target.parent, len(chunk))
            file.write(chunk)
            written += len(chunk)
    if size is not None and written != size:
        raise TornError(f"expected {size} bytes, got {written}")
