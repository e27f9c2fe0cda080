"""What each translation makes, and what a translation of one needs from the files beside it."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchedapi_core import contract

MANIFEST: Final = "batchedapi.yaml"
MODULE: Final = "batched_model"
"""Of the predictor that is written: no file of another server's is called so."""
PREDICTOR: Final = f"{MODULE}.py"
SAMPLES: Final = ("sample.json", "example.json", "sample_input.json", "input.json")
"""Where projects keep the body of a request."""
_NAME_LENGTH: Final = 45
MARK: Final = "  # EDIT: "


class MigrateError(ValueError):
    """The file cannot be taken over; says why, and what to do instead."""


class Note(NamedTuple):
    """One line of the source that was not taken over."""

    place: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Project:
    """Files as texts by their path from the folder of the one that is migrated."""

    folder: str
    """Its name; names the API where the file does not."""
    file: str
    files: Mapping[str, str]

    @property
    def text(self) -> str:
        """Of the file itself."""
        return self.files[self.file]

    def sample(self) -> str | None:
        """The body of a request as JSON, where the project has one."""
        return next((self.files[name].strip() for name in SAMPLES if name in self.files), None)

    def modules(self) -> dict[str, ast.Module]:
        """Python files that can be read, by their path.

        Raises:
            MigrateError: one is not Python.
        """
        found = {}
        for path, text in self.files.items():
            if path.endswith(".py"):
                try:
                    found[path] = ast.parse(text)
                except SyntaxError as error:
                    raise MigrateError(
                        f"{path}, line {error.lineno}: expected Python, got {error.msg}; mend it"
                    ) from error
        return found


@dataclass(frozen=True, slots=True)
class Migration:
    """Files to write, and what is not in them."""

    manifest: Mapping[str, Any]
    files: Mapping[str, str]
    """Text by name, beside the manifest."""
    notes: tuple[Note, ...]

    def edits(self) -> list[tuple[str, int, str]]:
        """Lines that only a person can write: file, number from 1, what to write there."""
        return [
            (name, number, line.partition(MARK)[2])
            for name, text in self.files.items()
            for number, line in enumerate(text.splitlines(), 1)
            if MARK in line
        ]


def api_name(text: str) -> str:
    """A name that Kubernetes takes, as near as possible to `text`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:_NAME_LENGTH].strip("-")
    return name if name[:1].isalpha() else f"api-{name}".strip("-")


def manifest_of(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A BatchedAPI; empty sections are left out."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": api_name(name)},
        "spec": {key: value for key, value in spec.items() if value or value == 0},
    }


def example_line(project: Project) -> str:
    """Definition of EXAMPLE: the project's sample, or a line to edit."""
    sample = project.sample()
    if sample is not None:
        try:
            return f"EXAMPLE = {json.loads(sample)!r}\n"
        except ValueError:
            pass  # not what it is called; a person writes one
    return (
        "EXAMPLE = None"
        f"{MARK}the body of one request as Python, which `batchedapi check` asks with\n"
    )


def module_of(path: str) -> str:
    """How a Python file is imported from the folder of the manifest."""
    return path.removesuffix(".py").replace("/", ".")


def tensor(dtype: str, shape: Sequence[int]) -> str:
    """A Tensor as code, of one row; lengths below 1 differ from row to row."""
    lengths = ", ".join(str(n) if n > 0 else f'"d{i}"' for i, n in enumerate(shape, 1))
    return f'Tensor("{dtype}", [{lengths}])'
