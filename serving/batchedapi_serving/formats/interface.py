"""A file, and the words for what is wrong with it; what the modules of all formats share."""

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from batchedapi_core.model_format import SUFFIXES, ModelFormat
from batchedapi_core.placement import THREAD_VARIABLES
from batchedapi_serving.errors import LoadError

_HEAD: Final = 64
"""Bytes by which people know what a file is."""
_NO_MODEL: Final = (
    (bytes(_HEAD), "nothing but zeros"),
    (b"version https://git-lfs", "a pointer of Git LFS: `git lfs pull` fetches the file"),
    (b"<", "HTML or XML"),
)
"""Beginnings of files that are of no format here, however long they are."""
ZIP: Final = b"PK\x03\x04"
_CONTENTS: Final = (
    (b"\x80", "a pickle"),
    (ZIP, "a ZIP archive"),
    (b"\x89HDF", "HDF5"),
    (b"{", "JSON"),
)

_SUFFIXES: Final = (*SUFFIXES.items(), ("bst", ModelFormat.XGBOOST), ("bst", ModelFormat.LIGHTGBM))
"""Ends of names in a folder whose format is known, so that one may be of two."""


def ends_of(format_: ModelFormat | None) -> tuple[str, ...]:
    """How names of its files end, `.pkl` for instance; none where it has folders, or is unknown."""
    return tuple(f".{end}" for end, its in _SUFFIXES if its is format_)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model on this machine, and what the manifest says of it.

    Attributes:
        path: The file, or its folder.
        format: Of the file.
        trusted: Whether code that it brings may run.
        device: As of `Context`.
        config: `predictor.config`.
    """

    path: Path
    format: ModelFormat
    trusted: bool = False
    device: str = "cpu"
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The one file of the format, if `path` is a folder.

        Raises:
            LoadError: there is none, or there are several.
        """
        ends = ends_of(self.format)
        if not (ends and self.path.is_dir()):
            return self.path
        found = sorted(one for one in self.path.rglob("*") if one.name.endswith(ends))
        if len(found) != 1:
            names = ", ".join(str(one.relative_to(self.path)) for one in found) or "none"
            raise refused(
                self,
                f"expected one file {' or '.join(ends)} in the folder, got {names}; name the file"
                " in spec.predictor.model.uri",
            )
        return found[0]


def refused(file: ModelFile, what: str) -> LoadError:
    """The error for a file that cannot be served."""
    return LoadError("InitFailed", f"spec.predictor.model {file.path.name!r}: {what}")


def check_content(file: ModelFile) -> None:
    """Refuse a file that is none of any format, before a library reads gigabytes of it.

    Raises:
        LoadError: it is empty, or begins as no model does.
    """
    head = head_of(file.file)
    words = next((words for begins, words in _NO_MODEL if head.startswith(begins)), "")
    if words or not head:
        raise refused(file, f"expected {file.format}, found {words or 'nothing'} in it")


def check_rows(file: ModelFile, what: str, shape: Sequence[Any] | None, remedy: str) -> None:
    """Refuse a tensor whose first dimension is not that of rows.

    Raises:
        LoadError: it is a number, or there is none.
    """
    if not shape or isinstance(shape[0], int):
        raise refused(
            file,
            f"{what}: expected a first dimension of any length, which is that of rows, got the"
            f" shape {list(shape or [])}; {remedy}",
        )


def content_of(path: Path) -> str:
    """What one knows of a file by its first bytes, for people."""
    head = head_of(path)
    return next(
        (f"there is {words} in it" for begins, words in _CONTENTS if head.startswith(begins)),
        "it may be cut off, or of another format",
    )


def head_of(path: Path) -> bytes:
    """The first bytes of a file."""
    if path.is_dir():
        return b"a folder"
    with path.open("rb") as opened:
        return opened.read(_HEAD)


def imported(file: ModelFile, module: str, extra: str) -> Any:
    """A library that is an extra.

    Raises:
        LoadError: it is not installed; says how it is.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise refused(
            file,
            f"{file.format} needs {error.name}, which is not installed: pip install"
            f" 'batchedapi[{extra}]', or build it into spec.predictor.image",
        ) from error


def threads() -> int:
    """Threads that this process may compute with; 0: as many as a library likes."""
    return int(os.environ.get(THREAD_VARIABLES[0], "0"))
