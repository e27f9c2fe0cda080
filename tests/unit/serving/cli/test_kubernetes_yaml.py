"""YAML as kubectl reads it; tests/contract/operator/test_language.py asks kubectl itself."""

from typing import Any

import pytest
import yaml

from batchedapi_serving.cli.documents import read_documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("y", True), ("On", True), ("off", False), ("N", False), ("'y'", "y"),
        ("5.0", 5), ("1e1", 10), (".5", 0.5), ("1.", 1), ("1.5", 1.5), ("12e03", 12000),
        ("0x10", 16), ("-0x10", -16), ("010", 8), ("0o17", 15), ("0b11", 3), ("1_000", 1000),
        ("09", 9), ("+5", 5), ("1e400", "1e400"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("=", "="), (".inf2", ".inf2"), ("!!str 1", "1"), ("!!int '7'", 7), ("!own 1", "1"),
        ("!own [1]", [1]), ("!own {a: 1}", {"a": 1}), ("!!binary aGk=", "hi"),
        ("!!set {x, y}", {}), ("9223372036854775808", 9.223372036854775808e18),
        ("{1: a, true: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
        ("{a: null, b: [~, {c: }]}", {"b": [None, {}]}), ("{a: 1, a: 2}", {"a": 2}),
    ],
)  # fmt: skip
def test_a_value_is_what_the_apiserver_would_get(text: str, value: Any) -> None:
    """Python's own reader takes 1:30 for 90, dates for dates, and y for a text."""
    (found,) = read_documents(f"x: {text}")

    assert {"x": value} == found
    assert type(value) is type(found["x"])


def test_a_file_may_be_json_with_tabs() -> None:
    """YAML does not allow tabs for indentation."""
    assert [{"a": 1, "b": {}}] == read_documents('{\n\t"a": 1.0, "b": {"c": null}\n}')
    assert [{"a": True}] == read_documents("{a: y}")


def test_empty_documents_are_none() -> None:
    """A trailing `---`, or only comments."""
    assert [{"a": 1}, [2]] == read_documents("---\na: 1\n---\n---\n- 2\n---\n# end\n")


def test_an_alias_is_a_copy() -> None:
    """And a merge key merges."""
    (found,) = read_documents("[&e {a: 1, b: 2}, {<<: *e, b: 3}, *e]")

    assert [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2}] == found


@pytest.mark.parametrize(
    "text", ["x: .inf", "x: .nan", "x: &a [*a]", "x: &a {b: *a}", "!!set [a]", "a: [", "x:\n\ty: 1"]
)
def test_what_json_has_no_words_for_is_refused(text: str) -> None:
    """As kubectl says before it sends anything."""
    with pytest.raises(yaml.YAMLError):
        read_documents(text)
