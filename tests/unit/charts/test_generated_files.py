"""Generated files on disk are those that their sources give today."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from crds import generate
from crds.resource import escape_template

from batchedapi_core import contract

ROOT: Final = Path(__file__).resolve().parents[3]


def crd_schema() -> dict[str, Any]:
    """The schema of the one version in the CRD on disk."""
    crd = yaml.safe_load((ROOT / "crds/batchedapis.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema that lists properties, with its path."""
    if "properties" in schema:
        yield path or ".", schema
    for name, member in schema.get("properties", {}).items():
        yield from objects(member, f"{path}.{name}")


def test_check_names_the_file_that_was_edited_by_hand_and_generating_brings_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of a generated file would be lost; `make verify` compares the files of this tree."""
    files = generate.generated_files()
    monkeypatch.setattr(generate, "generated_files", lambda: files)
    root = ["--root", str(tmp_path)]
    assert 0 == generate.main(root)
    assert 0 == generate.main(["--check", *root])
    values = tmp_path / "charts/batchedapi/values.yaml"
    values.write_text(values.read_text("utf-8").replace("info", "debug"), encoding="utf-8")

    assert 1 == generate.main(["--check", *root])
    said = capsys.readouterr().err
    assert "+++ charts/batchedapi/values.yaml (generated)" in said
    assert "1 generated files are out of date" in said

    generate.main(root)
    assert 0 == generate.main(["--check", *root])


def test_braces_in_a_description_reach_the_cluster_as_they_are_written() -> None:
    """Helm would take `{{` in the CRD for the begin of an action, and fail or drop the text."""
    assert 'legend {{ "{{" }}method}}' == escape_template("legend {{method}}")


def test_the_crd_on_disk_is_of_the_kind_that_the_operator_watches() -> None:
    """Group, version and plural are published names."""
    crd = yaml.safe_load((ROOT / "crds/batchedapis.yaml").read_text(encoding="utf-8"))

    assert f"{contract.PLURAL}.{contract.GROUP}" == crd["metadata"]["name"]
    assert [contract.VERSION] == [version["name"] for version in crd["spec"]["versions"]]


def test_a_default_object_names_the_defaults_inside_it() -> None:
    """The apiserver evaluates rules on a default as it stands, and refuses the CRD if they fail."""
    for path, schema in objects(crd_schema()):
        members = schema["properties"].items()
        inside = {name: member["default"] for name, member in members if "default" in member}

        assert inside == schema.get("default", inside), path


def test_a_rule_points_at_a_field_that_exists() -> None:
    """The apiserver refuses the CRD if it does not."""
    for _, schema in objects(crd_schema()):
        for rule in schema.get("x-kubernetes-validations", ()):
            found = schema
            for name in rule["fieldPath"].removeprefix(".").split("."):
                assert name in found.get("properties", {}), rule["fieldPath"]
                found = found["properties"][name]
