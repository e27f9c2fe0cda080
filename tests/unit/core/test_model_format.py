"""Names and addresses that tell a format, for Python and for the API server."""

import re

import pytest

from batchedapi_core.model_format import NAME_THAT_TELLS, SUFFIXES, ModelFormat, format_of_name


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        *((f"file:///models/a.{end}", format_) for end, format_ in SUFFIXES.items()),
        ("https://host/a.onnx?signature=x.y", ModelFormat.ONNX),
        ("hf://org/bert@main", ModelFormat.HUGGINGFACE),
        ("hf://org/bert/onnx/model.onnx", ModelFormat.ONNX),
        ("s3://bucket/onnx", None),
        ("file:///models/a.bst", None),
        ("file:///a.onnx/1", None),
    ],
)
def test_a_name_tells_its_format(name: str, format_: ModelFormat | None) -> None:
    """The pattern, by which the API server judges, says yes to the same ones."""
    assert format_ == format_of_name(name)
    assert (format_ is not None) is bool(re.search(NAME_THAT_TELLS, name))
