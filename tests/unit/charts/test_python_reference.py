"""The reference of the Python API against what is imported."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from crds import python_api

import batchedapi_serving
from batchedapi_serving import client, errors
from batchedapi_serving.predictor import metrics
from pages import ROOT, pages

PAGE: Final = (ROOT / "docs/reference/python.md").read_text("utf-8")
_HEADING: Final = re.compile(r"^#{3,4} `([\w.]+)`\n", re.MULTILINE)
_SIGNATURE: Final = re.compile(r"```python\n(?:@classmethod\n)?(.*?)\n```", re.DOTALL)
_IMPORT: Final = re.compile(
    r"^ *from (batchedapi_serving[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE
)


class Shown(NamedTuple):
    """A section of the page."""

    name: str
    text: str
    signature: str | None


def sections() -> Iterator[Shown]:
    """Every class, function and property of the page."""
    _, *rest = _HEADING.split(PAGE)
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        found = _SIGNATURE.search(text)
        yield Shown(name, text.partition("\n## ")[0], found[1] if found else None)


SECTIONS: Final = tuple(sections())
WITH_SIGNATURE: Final = [one for one in SECTIONS if one.signature]


def imported(name: str) -> Any:
    """The object that Python has under this name of the page."""
    first, *rest = name.split(".")
    modules = (batchedapi_serving, client, metrics)
    found = next(getattr(module, first) for module in modules if hasattr(module, first))
    for part in rest:
        found = getattr(found, part)
    return found


def parameters(found: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a call, without `self`."""
    return [one for one in inspect.signature(found).parameters.values() if one.name != "self"]


def parameters_of_text(shown: Shown) -> list[inspect.Parameter]:
    """The same of the signature on the page; defaults as Python evaluates them."""
    text = re.sub(r"^class ", "def ", shown.signature or "")
    scope: dict[str, Any] = {"os": os, "Metrics": metrics.Metrics}
    exec(f"from __future__ import annotations\n{text}: ...", scope)  # noqa: S102 - our own page
    return parameters(scope[shown.name.rpartition(".")[2]])


def told(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """Name, kind and default; that of a dataclass's factory, or what one made, is the same."""
    made = isinstance(parameter.default, metrics.Metrics) or "factory" in repr(parameter.default)
    return parameter.name, parameter.kind, "made anew" if made else parameter.default


@pytest.mark.parametrize("shown", WITH_SIGNATURE, ids=lambda shown: shown.name)
def test_a_signature_is_the_one_that_python_calls(shown: Shown) -> None:
    """Names, kinds and defaults, constants of ours and fields of dataclasses included."""
    found = imported(shown.name)

    read = parameters_of_text(shown)

    assert [told(one) for one in parameters(found)] == [told(one) for one in read]
    assert inspect.iscoroutinefunction(found) == (shown.signature or "").startswith("async ")


@pytest.mark.parametrize("shown", WITH_SIGNATURE, ids=lambda shown: shown.name)
def test_every_argument_is_described(shown: Shown) -> None:
    """A signature alone says neither shape nor unit."""
    described = shown.text.rpartition("```")[2]

    assert [] == [one.name for one in parameters(imported(shown.name)) if one.name not in described]


def test_every_name_that_a_predictor_can_import_is_there() -> None:
    """A new one comes with its section."""
    names = {one.name for one in SECTIONS}

    assert set(batchedapi_serving.__all__) <= names


def test_whatever_pages_and_examples_import_is_there() -> None:
    """Users copy them."""
    files = [ROOT / page for page in pages() if not page.startswith("docs/decisions")]
    files += (ROOT / "examples").rglob("*.py")
    names = {one.name for one in SECTIONS}

    found = {name for file in files for name in _imports(file)}

    assert {"batched", "QueueClient", "OverloadedError"} <= found
    assert set() == {name for name in found - names if f"| `{name}` |" not in PAGE}


def _imports(file: Path) -> Iterator[str]:
    for _, names in _IMPORT.findall(file.read_text("utf-8")):
        yield from re.findall(r"\w+", names)


def test_every_error_has_its_line_with_its_own_status_and_code() -> None:
    """They are inherited, which a reader of the source would have to follow."""
    raised = [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.ServingError)
    ]

    assert len(raised) >= 20
    for error in raised:
        (base,) = error.__bases__
        line = f"| `{error.__name__}` | `{base.__name__}` | {error.status} | `{error.code}` | "
        assert line in PAGE, line


def test_nothing_that_only_the_server_calls_is_promised() -> None:
    """Everything on the page has to stay as it is."""
    assert "to_json" not in PAGE
    assert "`Tensor.row_bytes`" not in PAGE


def test_something_public_without_a_docstring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heading with nothing below it helps nobody."""
    section = python_api._Section("batchedapi_serving.predictor.api", ("F",), "")
    monkeypatch.setattr(python_api, "_SECTIONS", (section,))

    with pytest.raises(python_api.UndocumentedError, match=r"api\.F: expected a docstring"):
        python_api.page()
