"""TorchScript and torch.export as they are: programs that torch itself has written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import Tensor
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats import ModelFile, class_of
from batchedapi_serving.model.loading import method_spec
from batchedapi_serving.predictor import MethodSpec

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # people have its files
SCRIPT, EXPORT = ModelFormat.TORCHSCRIPT, ModelFormat.TORCH_EXPORT


class Scores(torch.nn.Module):
    """Three numbers for four."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row of scores a row."""
        return self.layer(x).softmax(-1)


class Tokens(torch.nn.Module):
    """A vector for each token, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(10, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Both by name."""
        found = self.vectors(ids) * mask[..., None]
        return {"hidden": found, "mean": found.mean(1)}


def served(path: Path, format_: ModelFormat, **facts: Any) -> tuple[Any, MethodSpec]:
    """A predictor of the file, and its method."""
    found = class_of(ModelFile(path, format_, **{"trusted": True, **facts}))
    spec = method_spec(found, "predict")
    assert spec is not None
    return found(), spec


def refused(path: Path, format_: ModelFormat, **facts: Any) -> str:
    """The sentence for a file that is not served."""
    with pytest.raises(LoadError) as caught:
        served(path, format_, **facts)
    return str(caught.value)


def exported(path: Path, module: torch.nn.Module, *rows: torch.Tensor, **dims: Any) -> Path:
    """An exported program."""
    torch.export.save(torch.export.export(module, rows, dynamic_shapes=dims or None), path)
    return path


def test_an_exported_program_says_its_inputs(tmp_path: Path) -> None:
    """Names, types and shapes; outputs are those of two rows."""
    module = Scores()
    batch = torch.export.Dim("batch")
    path = exported(tmp_path / "scores.pt2", module, torch.zeros(2, 4), x={0: batch})

    model, spec = served(path, EXPORT)

    assert {"x": Tensor("FP32", [4], allow_non_finite=True)} == spec.inputs
    assert {"output": Tensor("FP32", [3], allow_non_finite=True)} == spec.outputs
    rows = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(rows)).detach().numpy(), model.predict(rows), rtol=1e-6
    )
    assert (1, 3) == model.predict(rows[:1]).shape


def test_lengths_that_differ_have_one_name(tmp_path: Path) -> None:
    """The output's is that of the inputs, so that what was filled up is cut back."""
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    rows = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3)
    dims = {"ids": {0: batch, 1: tokens}, "mask": {0: batch, 1: tokens}}
    path = exported(tmp_path / "tokens.pt2", Tokens(), *rows, **dims)

    model, spec = served(path, EXPORT)

    (name,) = spec.variable
    assert (name, 5) == spec.outputs["hidden"].shape
    assert (5,) == spec.outputs["mean"].shape
    found = model.predict({"ids": np.ones((1, 2), np.int64), "mask": np.ones((1, 2), "f4")})
    assert (1, 2, 5) == found["hidden"].shape


def test_a_program_of_one_shape_is_refused(tmp_path: Path) -> None:
    """Without a dimension for rows, with the remedy."""
    path = exported(tmp_path / "one.pt2", Scores(), torch.zeros(1, 4))

    assert "input 'x': expected a first dimension of any length" in refused(path, EXPORT)


def test_torchscript_needs_a_row_of_each_input(tmp_path: Path) -> None:
    """It knows names alone; the manifest's config says the rest."""
    module = Scores()
    torch.jit.script(module).save(tmp_path / "scores.pt")

    said = refused(tmp_path / "scores.pt", SCRIPT)
    config = {"inputs": {"x": {"datatype": "FP32", "shape": [4]}}}
    model, spec = served(tmp_path / "scores.pt", SCRIPT, config=config)

    assert "expected a row of each in spec.predictor.config.inputs, such as {x: {datat" in said
    assert (3,) == spec.outputs["output"].shape
    rows = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(rows)).detach().numpy(), model.predict(rows), rtol=1e-6
    )


def test_inputs_of_triton_are_told_by_their_place(tmp_path: Path) -> None:
    """So that its clients go on with the names that they know; so are outputs, in any order."""

    class Less(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x - y, y

    torch.jit.trace(Less(), (torch.zeros(3, 4), torch.zeros(3, 4))).save(tmp_path / "less.pt")
    row = {"datatype": "FP32", "shape": [4]}
    config = {"inputs": {"IN__1": row, "IN__0": row}, "outputs": ["OUT__1", "OUT__0"]}

    model, spec = served(tmp_path / "less.pt", SCRIPT, config=config)
    said = refused(tmp_path / "less.pt", SCRIPT, config=config | {"outputs": ["OUT__0"]})

    ones = np.ones((2, 4), np.float32)
    assert ["IN__0", "IN__1"] == list(spec.inputs)
    found = model.predict({"IN__0": 3 * ones, "IN__1": ones})
    np.testing.assert_array_equal([2 * ones, ones], [found["OUT__0"], found["OUT__1"]])
    assert "spec.predictor.config.outputs: expected 2 names, got" in said


@pytest.mark.parametrize("row", [{}, {"datatype": "float", "shape": [4]}, 3], ids=str)
def test_a_wrong_row_in_the_config_is_refused(tmp_path: Path, row: Any) -> None:
    """With the place."""
    torch.jit.script(Scores()).save(tmp_path / "scores.pt")

    said = refused(tmp_path / "scores.pt", SCRIPT, config={"inputs": {"x": row}})

    assert "spec.predictor.config.inputs: expected datatype and shape of each" in said


def test_an_answer_without_rows_is_refused(tmp_path: Path) -> None:
    """A sum over all rows is nobody's answer."""

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x.sum(0)

    torch.jit.trace(Sums(), torch.zeros(3, 4)).save(tmp_path / "sums.pt")

    said = refused(
        tmp_path / "sums.pt", SCRIPT, config={"inputs": {"x": {"datatype": "FP32", "shape": [4]}}}
    )

    assert "output_1: expected 2 rows for 2, got the shape [4]" in said


@pytest.mark.parametrize(("name", "format_"), [("a.pt", SCRIPT), ("a.pt2", EXPORT)])
def test_a_program_needs_trust(tmp_path: Path, name: str, format_: ModelFormat) -> None:
    """The message says why; torch is not asked."""
    (tmp_path / name).write_bytes(b"PK\x03\x04")

    said = refused(tmp_path / name, format_, trusted=False)

    assert "is a program" in said
    assert "spec.predictor.model.trusted: true (--trusted)" in said


@pytest.mark.parametrize(("name", "format_"), [("a.pt", SCRIPT), ("a.pt2", EXPORT)])
@pytest.mark.parametrize("content", ["half", "weights", b"other", b"PK\x03\x04"], ids=str)
def test_another_file_or_half_of_one_is_refused(
    tmp_path: Path, name: str, format_: ModelFormat, content: bytes | str
) -> None:
    """In one sentence; weights without their class are no program."""
    path = tmp_path / name
    if content == "weights":
        torch.save(Scores().state_dict(), path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        if format_ is SCRIPT:
            torch.jit.script(Scores()).save(path)
        else:
            exported(path, Scores(), torch.zeros(1, 4))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    said = refused(path, format_)

    assert f"cannot be loaded as {format_}" in said
    assert "\n" not in said
