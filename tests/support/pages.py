"""Blocks of code in README, docs and examples: what becomes of each, and what it has to print.

Every fenced block says by its language and the comments above it what is to be done with it:

    ```console, ```python         run by `page_session`, in the order of the page
    ```yaml                       read by the product; a part of a manifest is completed
    ```text                       a picture or a formula: nothing to run
    <!-- run by FILE::TEST -->    run by that test: the same command, with a port, a namespace or a
                                  length of its own
    <!-- read by FILE::TEST -->   read by that test as the product reads it: options, values, a type
    <!-- not run: REASON -->      not run

Between blocks, and seen by nobody who reads the page:

    <!-- run: COMMAND -->         run, such as the server that later blocks ask
    <!-- file: NAME               a file, written where commands run; a line ... in it is the next
    CONTENT -->                   block, indented as that line; without CONTENT it is the next block
    <!-- figures vary -->         of the next block: any number stands for any other
"""

import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import parse_api
from batchedapi_core.manifest.spec import BatchedAPISpec

ROOT: Final = Path(__file__).resolve().parents[2]
LARGE_EXTRAS: Final = frozenset({".[torch-examples]", ".[loadtest]"})
"""What `make examples` installs."""
_PART: Final = re.compile(
    r"^<!-- (?P<mark>.*?)-->$|^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_INDENTED: Final = re.compile(r"(?<=\n\n) {4}(?! )\S.*$", re.MULTILINE)
_LONG_FLOAT: Final = r"-?\d+\.\d{5,}(?:e[-+]?\d+)?"
"""Its last digits are those of the library that made it, on this machine's CPU."""
_PRINTED: Final = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)


class Fate(StrEnum):
    """The treatment of a block."""

    RUN = "run"
    BY_TEST = "run by a test of its own"
    READ = "read by a test of its own"
    NOT_RUN = "not run"
    PICTURE = "a picture"


class PageError(Exception):
    """A page is not what this module reads; names page and line."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    """Path in the repository."""
    line: int
    """Of its fence, from 1."""
    language: str
    text: str
    mark: str = ""
    """`run by ...`, `read by ...` or `not run: ...`; empty: none."""
    figures_vary: bool = False
    saved: "File | None" = None
    """It is not run itself, but this file, which commands of the page use."""

    @property
    def place(self) -> str:
        """For people who look it up."""
        return f"{self.page}:{self.line}"

    @property
    def fate(self) -> Fate:
        """The block's treatment.

        Raises:
            PageError: a block that nothing runs does not say so.
        """
        if self.mark.startswith("not run: "):
            return Fate.NOT_RUN
        if self.mark.startswith("run by "):
            return Fate.BY_TEST
        if self.mark.startswith("read by "):
            return Fate.READ
        if self.language == "text":
            return Fate.PICTURE
        if self.language in {"console", "python", "yaml"}:
            return Fate.RUN
        raise PageError(
            f"{self.place}: nothing runs a block of {self.language or 'no language'};"
            " say <!-- run by FILE::TEST -->, <!-- read by FILE::TEST --> or"
            " <!-- not run: REASON --> above it, or that it is text"
        )

    @property
    def reason(self) -> str:
        """Why it is not run, or the test that runs or reads it."""
        return self.mark.removeprefix("not run: ").removeprefix("run by ").removeprefix("read by ")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A command that readers of the page do not see."""

    command: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that commands of the page use."""

    name: str
    text: str


Step = Block | Hidden | File


def pages() -> list[str]:
    """Every page with blocks that somebody may copy, as paths in the repository."""
    folders = ("docs/**/*.md", "examples/**/*.md", "charts/**/*.md", "tests/*/README.md")
    found = {page for folder in folders for page in ROOT.glob(folder)}
    names = {str(page.relative_to(ROOT)) for page in found} | {"README.md", "CONTRIBUTING.md"}
    return sorted(names)


def steps(page: str, text: str) -> list[Step]:
    """Blocks of a page and what is done between them, in order.

    Raises:
        PageError: a mark has no block, or there is an indented block.
    """
    if indented := _INDENTED.search(_PART.sub("", text)):
        raise PageError(f"{page}: an indented block; put it between fences: {indented[0].strip()}")
    found: list[Step] = []
    mark, figures_vary, file, around = "", False, "", ""
    for part in _PART.finditer(text):
        said = (part["mark"] or "").strip()
        if said.startswith("run: "):
            found.append(Hidden(said.removeprefix("run: ")))
        elif said.startswith("file: "):
            name, _, content = said.removeprefix("file: ").partition("\n")
            if not content or _has_gap(content):
                file, around = name, content or "..."
            else:
                found.append(File(name, f"{content}\n"))
        elif said.startswith(("run by ", "read by ", "not run: ")):
            mark = said
        elif said == "figures vary":
            figures_vary = True
        elif part["text"] is not None:
            line = text.count("\n", 0, part.start()) + 1
            body = textwrap.dedent(part["text"])
            saved = File(file, _filled(around, body)) if file else None
            found.append(Block(page, line, part["language"], body, mark, figures_vary, saved))
            mark, figures_vary, file, around = "", False, "", ""
    if mark or figures_vary or file:
        raise PageError(f"{page}: no block is below the last of its marks: {mark or file}")
    return found


def _has_gap(content: str) -> bool:
    return any(line.strip() == "..." for line in content.splitlines())


def _filled(around: str, body: str) -> str:
    lines = []
    for line in around.splitlines():
        indent = line.removesuffix("...")
        lines.append(textwrap.indent(body, indent) if line.strip() == "..." else f"{line}\n")
    return "".join(lines)


def blocks(page: str) -> list[Block]:
    """The blocks of a page of this repository."""
    found = steps(page, (ROOT / page).read_text("utf-8"))
    return [step for step in found if isinstance(step, Block)]


def installs(page: str) -> set[str]:
    """Words of the `pip install` commands of a page's blocks that are run."""
    run = [
        block for block in blocks(page) if block.fate is Fate.RUN and block.language == "console"
    ]
    lines = [command for block in run for command, _ in commands(block.text)]
    found = (shlex.split(line, comments=True) for line in lines if line.startswith("pip install "))
    return {word for words in found for word in words[2:]}


def runs_programs(page: str) -> bool:
    """Whether a block of the page is a program or a command that is run."""
    run = (block for block in blocks(page) if block.fate is Fate.RUN)
    return any(block.language != "yaml" for block in run)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, what is shown below it) of a console block; a command may have several lines.

    Raises:
        ValueError: it does not begin with a command.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[0].startswith("$ "):
        raise ValueError(f"expected `$ ` and a command, got {lines[0]!r}")
    while lines:
        command = lines.pop(0).removeprefix("$ ")
        while lines and _goes_on(command):
            command += lines.pop(0)
        shown = ""
        while lines and not lines[0].startswith("$ "):
            shown += lines.pop(0)
        yield command.rstrip("\n"), shown


def _goes_on(command: str) -> bool:
    if command.endswith("\\\n"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def shown_by_prints(code: str) -> str:
    """The expected output of a block of Python: the comments behind its calls of print."""
    return "".join(f"{line}\n" for line in _PRINTED.findall(code))


def prints_as_shown(shown: str, printed: str, *, figures_vary: bool = False) -> bool:
    """Whether a program printed what a page shows.

    Three dots stand for anything on their line, alone on a line for any lines. Spaces at the ends
    of lines do not count. Numbers of five or more decimals may differ by 1e-4 of themselves.

    Args:
        shown: On the page.
        printed: By the program.
        figures_vary: Any number stands for any other, and bars of # are of any length.
    """
    expected: list[float] = []
    lines = [_pattern(line.rstrip(), expected, figures_vary) for line in shown.splitlines()]
    got = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    match = re.fullmatch("".join(lines), got)
    return match is not None and all(
        math.isclose(wanted, float(found), rel_tol=1e-4, abs_tol=1e-9)
        for wanted, found in zip(expected, match.groups(), strict=True)
    )


def _pattern(line: str, expected: list[float], figures_vary: bool) -> str:  # noqa: FBT001
    if line == "...":
        return r"(?:.*\n)*"
    pieces = re.split(rf"(\.\.\.|{_LONG_FLOAT})", line)
    found = ""
    for piece in pieces:
        if piece == "...":
            found += ".*"
        elif figures_vary:
            found += _any_figure(piece)
        elif re.fullmatch(_LONG_FLOAT, piece):
            expected.append(float(piece))
            found += r"(-?\d+\.?\d*(?:e[-+]?\d+)?)"
        else:
            found += re.escape(piece)
    return rf"{found}\n"


def _any_figure(text: str) -> str:
    pieces = re.split(r"(-?[\d.]*\d|#+| +)", text)
    patterns = {"#": "#*", " ": " +"}
    return "".join(
        patterns.get(piece[:1], r"-?[\d.]*\d") if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )


def manifests(text: str) -> Sequence[dict[str, Any]]:
    """BatchedAPIs of a yaml block; a part of one is completed with what every manifest has.

    A mapping with `spec` lacks apiVersion, kind and name; one of the fields of a spec is a spec.

    Raises:
        ValueError: a document is neither a BatchedAPI nor a part of one.
    """
    return [_completed(document) for document in yaml.safe_load_all(text)]


def _completed(document: Any) -> dict[str, Any]:
    fields = {field.alias or name for name, field in BatchedAPISpec.model_fields.items()}
    known = _HEAD.keys() | {"spec"}
    if not isinstance(document, dict) or not (
        document.keys() <= known if "spec" in document else document.keys() <= fields
    ):
        raise ValueError(f"expected a BatchedAPI or a part of one, got {str(document)[:100]}")
    whole = document if "spec" in document else {"spec": document}
    predictor = {"path": "model:Model", **whole["spec"].get("predictor", {})}
    return {**_HEAD, **whole, "spec": {**whole["spec"], "predictor": predictor}}


_HEAD: Final[dict[str, Any]] = {
    "apiVersion": contract.API_VERSION,
    "kind": contract.KIND,
    "metadata": {"name": "api"},
}


def read_as_manifest(block: Block) -> None:
    """Read a yaml block as the product reads it.

    Raises:
        ManifestError: it is not a valid manifest.
        ValueError: it is not a manifest at all.
    """
    for manifest in manifests(block.text):
        parse_api(manifest)
