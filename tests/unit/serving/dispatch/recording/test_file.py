"""The file of a recording, on a real file system."""

import contextlib
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedapi_serving.dispatch.recording import RecordFile, UnwrittenError


@contextlib.contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process can become larger than `size` bytes: a write is cut short there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_come_one_after_the_other(tmp_path: Path) -> None:
    """Whoever opens the file again goes on where the last one stopped."""
    path = tmp_path / "record.jsonl"
    first = RecordFile(path)
    first.append([b"1\n", b"2\n"])
    first.close()

    second = RecordFile(path)
    second.append([b"3\n"])
    second.close()

    assert b"1\n2\n3\n" == path.read_bytes()


@pytest.mark.parametrize(
    ("left", "kept"), [(b"1\n2", b"1\n"), (b"1", b""), (b"", b""), (b"1\n" * 50000, b"1\n" * 50000)]
)
def test_a_line_that_a_killed_writer_began_is_taken_back(
    tmp_path: Path, left: bytes, kept: bytes
) -> None:
    """Half a line, and the next behind it, would be no JSON."""
    path = tmp_path / "record.jsonl"
    path.write_bytes(left)

    file = RecordFile(path)
    file.append([b"3\n"])
    file.close()

    assert kept + b"3\n" == path.read_bytes()


def test_a_full_disk_leaves_whole_lines_and_a_count_of_the_others(tmp_path: Path) -> None:
    """Three lines of ten bytes fit into 35; writing goes on when there is room again."""
    path = tmp_path / "record.jsonl"
    file = RecordFile(path)
    lines = [b"%09d\n" % n for n in range(5)]

    with full_at(35), pytest.raises(UnwrittenError, match="2 lines were not written") as caught:
        file.append(lines)
    held = path.read_bytes()
    file.append([b"later\n"])
    file.close()

    assert 2 == caught.value.lines
    assert isinstance(caught.value.__cause__, OSError)
    assert errno.EFBIG == caught.value.__cause__.errno
    assert b"".join(lines[:3]) == held
    assert b"".join([*lines[:3], b"later\n"]) == path.read_bytes()
