"""A file that has whole lines only, whatever happens while they are written."""

import contextlib
import os
from pathlib import Path
from typing import Final

_LOOK_BACK: Final = 65536
"""Bytes in which the end of the last line is looked for; a line of ours has some hundred."""


def create(path: Path) -> None:
    """Make an empty file to record to.

    Raises:
        OSError: it cannot be made, or something else is in it; says what to do.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"--record {path}: expected a regular file, as it is written to by offset")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size:
            raise FileExistsError(
                f"--record {path}: expected a new or empty file, and something is in this one;"
                " name another, or remove it"
            )
    finally:
        os.close(descriptor)


class RecordFile:
    """Appends lines to a file, such as `create` made; one writer at a time."""

    def __init__(self, path: Path) -> None:
        """Go on behind the last whole line.

        A writer that was killed may have left part of another.

        Raises:
            OSError: the file cannot be opened, nor made.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _LOOK_BACK)
        self._end = start + os.pread(self._descriptor, size - start, start).rfind(b"\n") + 1
        os.ftruncate(self._descriptor, self._end)

    def append(self, lines: list[bytes]) -> None:
        """Write lines, each with its newline.

        Raises:
            UnwrittenError: the disk is full, or gone; the lines before are in the file.
        """
        data, done = b"".join(lines), 0
        try:
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._end + done)
        except OSError as error:
            whole = data.rfind(b"\n", 0, done) + 1
            self._end += whole
            with contextlib.suppress(OSError):  # a part that stays is written over by the next line
                os.ftruncate(self._descriptor, self._end)
            raise UnwrittenError(len(lines) - data.count(b"\n", 0, whole), error) from error
        self._end += done

    def close(self) -> None:
        """Twice is an error."""
        os.close(self._descriptor)


class UnwrittenError(Exception):
    """Some lines are not in the file."""

    def __init__(self, lines: int, reason: OSError) -> None:
        super().__init__(f"{lines} lines were not written: {reason}")
        self.lines = lines
