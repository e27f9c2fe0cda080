"""The digest of a file and of a folder."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.model_source.__main__ import check_digest, digest_of


def test_a_files_digest_is_what_sha256sum_says(tmp_path: Path) -> None:
    """People copy it from there."""
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights")

    said = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout

    assert said.split()[0] == digest_of(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_folders_digest_can_be_made_by_hand(tmp_path: Path) -> None:
    """With the documented command; names with spaces, several levels and links included."""
    for name in ("b", "a b", "sub/z", "sub/A", "sub-2/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "folder").symlink_to("sub")
    command = (
        r"find . -xtype f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum"
    )

    said = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout

    assert said.split()[0] == digest_of(tmp_path)


def test_names_count_in_a_folders_digest(tmp_path: Path) -> None:
    """Two files whose contents are swapped are another model."""
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = digest_of(tmp_path)
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").write_text("1")

    assert before != digest_of(tmp_path)


def test_a_wrong_digest_names_both(tmp_path: Path) -> None:
    """One of them is a typing mistake, and the reader has to see which."""
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights")
    found = digest_of(file)

    check_digest(file, None)
    check_digest(file, found.upper())
    with pytest.raises(
        LoadError, match=f"expected {'0' * 64}, but model.bin has {found}"
    ) as raised:
        check_digest(file, "0" * 64)

    assert raised.value.reason == "DigestMismatch"
