"""A folder of API keys; the supervisor looks into it too, which has no codecs and no numpy."""

import hashlib
from pathlib import Path
from typing import Final

from batchedapi_serving.errors import LoadError

_UNPRINTABLE: Final = bytes(byte for byte in range(256) if not 0x21 <= byte <= 0x7E)  # noqa: PLR2004 - ! to tilde


def read_keys(folder: Path) -> dict[str, bytes | LoadError]:
    """By the names of its files the digest of each key, as a mounted Secret has them.

    Where a file is no key there is an error, which says which file, and nothing of what is in it.

    Raises:
        OSError: nobody knows what is in the folder.
    """
    found: dict[str, bytes | LoadError] = {}
    for file in sorted(folder.iterdir()) if folder.exists() else ():
        if file.name.startswith(".") or not file.is_file():
            continue
        try:
            key = file.read_bytes().strip()
        except OSError as error:
            found[file.name] = _wrong(folder, f"file {file.name}: expected a key, got {error}")
            continue
        if not key or key.translate(None, _UNPRINTABLE) != key:
            found[file.name] = _wrong(
                folder,
                f"file {file.name}: expected one key of printable ASCII without spaces;"
                " write it anew, or remove the file",
            )
        else:
            found[file.name] = hashlib.sha256(key).digest()
    return found


def _wrong(folder: Path, what: str) -> LoadError:
    return LoadError("InitFailed", f"--api-keys {folder}: {what}")


def expect_keys(folder: Path) -> None:
    """See that a replica can ask for keys.

    Raises:
        LoadError: there is none, or one is no key.
    """
    try:
        found = read_keys(folder)
    except OSError as error:
        raise _wrong(folder, f"expected a folder that can be read, got {error}") from error
    for digest in found.values():
        if isinstance(digest, LoadError):
            raise digest
    if not found:
        raise _wrong(
            folder, "expected a folder with at least one key, got none; put one into a file"
        )
