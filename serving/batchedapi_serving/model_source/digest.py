r"""The sha256 of a model: of one file, or of a folder.

A folder's digest is that of the text `<sha256>  <path>\n` of every file in it, paths relative with
forward slashes, sorted by path as bytes; links to files count as files, links to folders not at
all. The same by hand, in the folder:

    find . -xtype f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum
"""

import hashlib
from pathlib import Path

from batchedapi_serving.errors import LoadError


def digest_of(path: Path) -> str:
    """64 hexadecimal digits.

    Raises:
        OSError: something cannot be read.
    """
    if not path.is_dir():
        return _of_file(path)
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    names = sorted(files, key=lambda name: name.encode("utf-8", "surrogateescape"))
    listing = "".join(f"{_of_file(files[name])}  {name}\n" for name in names)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, expected: str | None) -> None:
    """Compare with `predictor.model.sha256`; None: nothing to compare with.

    Raises:
        LoadError: DigestMismatch.
    """
    if expected is None:
        return
    found = digest_of(path)
    if found != expected.lower():
        raise LoadError(
            "DigestMismatch",
            f"spec.predictor.model.sha256: expected {expected.lower()}, but {path.name} has"
            f" {found}; correct the digest, or the file is not the one that was meant",
        )
