"""docs/reference/python.md: what predictors and web apps import, from signatures and docstrings."""

import ast
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

import griffe
from ruff import find_ruff_bin

from crds.markdown import HEADER, code, table

_ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGE: Final = "batchedapi_serving"
_ERRORS: Final = f"{_PACKAGE}.errors"
_WIDTH: Final = 88
"""Columns of a signature; the site shows so many without scrolling."""
_TEST: Final = (
    "tests/unit/charts/test_python_reference.py::test_a_signature_is_the_one_that_python_calls"
)
_INTRODUCTION: Final = f"""\
All that a predictor or a web app needs of {code(_PACKAGE)}. What is not on this page is the
server's own, and may change with any release. Guides: [batching](../guides/batching.md),
[streams and forms](../guides/protocols.md), [models](../guides/models.md),
[one queue](../guides/one-queue.md).
"""
_ABOUT_ERRORS: Final = """\
What `QueueClient` raises, and what clients get over HTTP with this status and code
([what to do](../guides/failures-and-overload.md)).
"""


class _Section(NamedTuple):
    module: str
    names: tuple[str, ...]
    """In the order of the page."""
    text: str


_SECTIONS: Final = (
    _Section(
        _PACKAGE,
        (
            "batched", "endpoint", "fork_safe", "Tensor", "SizeOf", "Context", "ItemError",
            "SubmitError", "Response", "Upload", "Embeddings", "Reranker",
        ),
        "What a predictor imports.\n",
    ),
    _Section(
        f"{_PACKAGE}.predictor.metrics",
        ("Metrics", "Counter", "Gauge", "Histogram"),
        "`context.metrics` and what it makes; nothing of it is imported. Names and methods are"
        " prometheus-client's.\n",
    ),
    _Section(
        f"{_PACKAGE}.client",
        ("QueueClient", "RowFailedError"),
        "What [a web app of one's own](../guides/one-queue.md#a-web-app-of-ones-own) imports.\n",
    ),
)  # fmt: skip
_NOT_CONSTRUCTED: Final = frozenset(
    ("SizeOf", "Metrics", "Counter", "Gauge", "Histogram", "SubmitError", "RowFailedError")
)
"""Users are given these, or have a method that makes one."""
_OF_THE_SERVER: Final = {
    "Tensor": frozenset((
        "numpy_dtype", "names", "variable", "fixed_shape", "items_per_row", "row_bytes",
        "item_bytes",
    )),
    "SizeOf": frozenset(("cost", "to_json", "from_json")),
}  # fmt: skip
"""Public members that only the server calls."""


class UndocumentedError(Exception):
    """Something of the public API has no docstring; names it."""


def page() -> str:
    """The whole page.

    Raises:
        UndocumentedError: something on it has no docstring.
    """
    loader = griffe.GriffeLoader(
        search_paths=[_ROOT / "serving", _ROOT / "core"], docstring_parser="google"
    )
    loader.load("batchedapi_core")
    loader.load(_PACKAGE)
    loader.resolve_aliases(implicit=True)
    known = loader.modules_collection
    parts = [f"{HEADER}# Python\n", _INTRODUCTION]
    for section in _SECTIONS:
        parts += [f"## {code(section.module)}\n", section.text]
        for name in section.names:
            parts += _object(name, known[f"{section.module}.{name}"], known, level=3)
    parts += [f"## {code(_ERRORS)}\n", _ABOUT_ERRORS, _errors(known[_ERRORS])]
    return "\n".join(parts)


def _object(
    path: str, found: griffe.Object | griffe.Alias, known: griffe.ModulesCollection, *, level: int
) -> Iterator[str]:
    """Heading, signature, docstring and members of a class, function or property."""
    found = _own(found)
    yield f"{'#' * level} {code(path)}\n"
    match found:
        case griffe.Class():
            if bases := _bases(found):
                yield f"Bases: {bases}\n"
            if found.name not in _NOT_CONSTRUCTED:
                yield _signature(found, known)
        case griffe.Function():
            yield _signature(found, known)
        case griffe.Attribute():
            yield f"A property, {code(str(found.annotation))}.\n"
    yield from _docstring(found)
    if isinstance(found, griffe.Class):
        hidden = _OF_THE_SERVER.get(found.name, frozenset())
        for name, member in found.all_members.items():
            public = member.is_function or "property" in member.labels
            if public and not name.startswith("_") and name not in hidden:
                yield from _object(f"{path}.{name}", member, known, level=level + 1)


def _own(found: griffe.Object | griffe.Alias) -> griffe.Object:
    """What an imported or inherited name stands for."""
    return found.final_target if isinstance(found, griffe.Alias) else found


def _bases(found: griffe.Class) -> str:
    names = (str(base).rpartition(".")[2] for base in found.bases)
    return ", ".join(code(name) for name in names if not name.startswith("_"))


def _signature(found: griffe.Class | griffe.Function, known: griffe.ModulesCollection) -> str:
    """A block of Python's own words, with values of constants and without aliases of types."""
    for parameter in found.parameters:
        parameter.default = _constant(parameter.default, known)
        parameter.annotation = _spelled_out(parameter.annotation, known)
    kind = "async def" if "async" in found.labels else "def"
    lines = subprocess.run(  # noqa: S603 - ruff, of this environment
        [find_ruff_bin(), "format", "--isolated", "--line-length", str(_WIDTH), "-"],
        input=f"{kind} {found.signature()}: ...", capture_output=True, text=True, check=True,
    ).stdout.removesuffix(": ...\n")  # fmt: skip
    if isinstance(found, griffe.Class):
        lines = f"class {lines.removeprefix('def ')}"
    elif "classmethod" in found.labels:
        lines = f"@classmethod\n{lines}"
    return f"<!-- read by {_TEST} -->\n```python\n{lines}\n```\n"


def _constant(
    default: str | griffe.Expr | None, known: griffe.ModulesCollection
) -> str | griffe.Expr | None:
    """The value of a default that is a constant of ours."""
    return known[default.canonical_path].value if _is_ours(default) else default


def _spelled_out(
    annotation: str | griffe.Expr | None, known: griffe.ModulesCollection
) -> str | griffe.Expr | None:
    """A type in which each alias of ours, such as Tensors, is what it stands for."""
    if not isinstance(annotation, griffe.Expr):
        return annotation
    return "".join(
        str(_meant(part, known)) if _is_ours(part) else str(part)
        for part in annotation.iterate(flat=True)
    )


def _meant(name: griffe.Expr, known: griffe.ModulesCollection) -> str | griffe.Expr:
    found = known[name.canonical_path]
    if isinstance(found, griffe.Attribute) and isinstance(found.value, griffe.ExprBinOp):
        return found.value
    return name


def _is_ours(expression: str | griffe.Expr | None) -> TypeGuard[griffe.Expr]:
    return isinstance(expression, griffe.ExprName | griffe.ExprAttribute) and (
        expression.canonical_path.startswith("batchedapi_")
    )


def _parsed(found: griffe.Object) -> Sequence[griffe.DocstringSection]:
    if found.docstring is None:
        raise UndocumentedError(f"{found.canonical_path}: expected a docstring; it is public")
    return found.docstring.parsed


def _docstring(found: griffe.Object) -> Iterator[str]:
    for section in _parsed(found):
        match section:
            case griffe.DocstringSectionText():
                yield f"{section.value}\n"
            case griffe.DocstringSectionParameters():
                rows = ((code(one.name), one.description) for one in section.value)
                yield table(("argument", "meaning"), rows)
            case griffe.DocstringSectionAttributes():
                rows = ((code(one.name), one.description) for one in section.value)
                yield table(("attribute", "meaning"), rows)
            case griffe.DocstringSectionReturns():
                yield f"Returns: {' '.join(one.description for one in section.value)}\n"
            case griffe.DocstringSectionRaises():
                rows = ((code(str(one.annotation)), one.description) for one in section.value)
                yield table(("raises", "when"), rows)
            case _:
                raise UndocumentedError(
                    f"{found.canonical_path}: {section.kind.value} of a docstring is not shown"
                )


def _errors(module: griffe.Object | griffe.Alias) -> str:
    rows = (_row(one) for one in module.classes.values() if isinstance(one, griffe.Class))
    return table(("error", "of", "status", "code", "meaning"), rows)


def _row(error: griffe.Class) -> tuple[str, ...]:
    """Class, base, status and code, be they inherited, and what the docstring says."""
    text, *others = _parsed(error)
    attributes = (
        f"{code(one.name)}: {one.description}"
        for section in others
        if isinstance(section, griffe.DocstringSectionAttributes)
        for one in section.value
    )
    members = (_own(error.all_members[name]) for name in ("status", "code"))
    status, word = (str(one.value) for one in members if isinstance(one, griffe.Attribute))
    meaning = " ".join((text.value, *attributes))
    return code(error.name), _bases(error), status, code(ast.literal_eval(word)), meaning
