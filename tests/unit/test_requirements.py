"""The packages that are installed, here and in the images, beside what pyproject.toml asks for."""

import re
import tomllib
from importlib.metadata import distribution, distributions
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PIN: Final = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
HASHED: Final = re.compile(
    r"^[\w.-]+==[^\\]+\\\n(?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE
)
OF_IMAGES: Final = {"serving": ("serving", "otel", "redis", "hf", "oci"), "operator": ("operator",)}
"""Extras that an image has."""


def pins(file: str) -> dict[str, str]:
    """Name -> version in a file of requirements."""
    found = PIN.findall((ROOT / file).read_text("utf-8"))
    return {canonicalize_name(name): version for name, version in found}


def asked_for(part: str) -> list[Requirement]:
    """What pyproject.toml wants for an image, or for the wheel in it."""
    project = PYPROJECT["project"]
    hook = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    if part == "build":
        return [*map(Requirement, (*PYPROJECT["build-system"]["requires"], *hook["dependencies"]))]
    extras = (project["optional-dependencies"][extra] for extra in OF_IMAGES[part])
    wanted = map(Requirement, chain(project["dependencies"], *extras))
    return [one for one in wanted if one.name != project["name"]]


def needed(requirement: Requirement) -> set[str]:
    """Names of what a requirement brings here, itself among them."""
    found: set[tuple[str, str]] = set()
    waiting = [(requirement.name, extra) for extra in ("", *requirement.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in found:
            continue
        found.add((canonicalize_name(name), extra))
        for one in map(Requirement, distribution(name).requires or ()):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                waiting += [(one.name, further) for further in ("", *one.extras)]
    return {name for name, _ in found}


def test_every_pinned_version_is_for_the_oldest_python_of_ours() -> None:
    """A pin that wants a later patch release ends `make install` where Python is Debian's."""
    oldest = f"{PYPROJECT['project']['requires-python'].removeprefix('>=')}.0"

    wanted = {one.name: one.metadata["Requires-Python"] or "" for one in distributions()}

    assert {} == {
        name: versions for name, versions in wanted.items() if oldest not in SpecifierSet(versions)
    }


@pytest.mark.parametrize("part", [*OF_IMAGES, "build"])
def test_an_image_installs_what_is_asked_for_as_it_is_tested_and_by_hash(part: str) -> None:
    """After a change of either file `make requirements` has to be run."""
    file = f"requirements/{part}.txt"
    found, tested = pins(file), pins("constraints.txt")

    needs = set().union(*map(needed, asked_for(part)))

    assert set() == needs - found.keys()
    assert needs <= {*tested, "setuptools"}  # which pip freeze leaves out
    assert found == found | {name: tested[name] for name in found.keys() & tested}
    assert len(found) == len(HASHED.findall((ROOT / file).read_text("utf-8")))
