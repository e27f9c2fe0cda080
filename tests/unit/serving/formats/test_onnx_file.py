"""ONNX files: what the graph says becomes what is declared."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import Tensor
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats import ModelFile, class_of
from batchedapi_serving.model.loading import method_spec
from batchedapi_serving.predictor import MethodSpec
from onnx_models import iris_model, onnx_model, tensor


def served(path: Path, **facts: Any) -> tuple[Any, MethodSpec]:
    """A predictor of the file, and its method."""
    found = class_of(ModelFile(path, ModelFormat.ONNX, **facts))
    spec = method_spec(found, "predict")
    assert spec is not None
    return found(), spec


def refused(path: Path, **facts: Any) -> str:
    """The sentence for a file that is not served."""
    with pytest.raises(LoadError) as caught:
        served(path, **facts)
    assert "InitFailed" == caught.value.reason
    return str(caught.value)


def test_one_input_and_output_keep_their_names(tmp_path: Path) -> None:
    """One row is a list of numbers in JSON, and the tensors are called as in the graph."""
    model, spec = served(iris_model(tmp_path / "iris.onnx"))

    found = model.predict(np.arange(8, dtype=np.float32).reshape(2, 4))

    assert [[0, 1, 2], [4, 5, 6]] == found.tolist()
    assert {"sepals": Tensor("FP32", [4], allow_non_finite=True)} == spec.inputs
    assert {"scores": Tensor("FP32", [3], allow_non_finite=True)} == spec.outputs
    assert spec.single_input
    assert spec.single_output


def test_several_inputs_are_by_name_and_lengths_may_differ(tmp_path: Path) -> None:
    """The same symbol is the same length; a dimension without one has a name of its own."""
    path = onnx_model(
        tmp_path / "sum.onnx",
        [tensor("ids", "INT64", ["batch", "tokens"]), tensor("mask", "INT64", ["?", "?"])],
        [tensor("sum", "INT64", ["batch", "tokens"])],
        "Add",
    )

    model, spec = served(path)

    assert {
        "ids": Tensor("INT64", ["tokens"]), "mask": Tensor("INT64", ["mask_1"]),
    } == spec.inputs  # fmt: skip
    rows = np.ones((2, 3), np.int64)
    assert [[2, 2, 2]] * 2 == model.predict({"ids": rows, "mask": rows}).tolist()


@pytest.mark.parametrize(
    ("mask", "length", "pad"),
    [("attention_mask", "tokens", 0), ("mask", "tokens", None), ("attention_mask", "other", None)],
)
def test_texts_with_a_mask_are_padded(
    tmp_path: Path, mask: str, length: str, pad: int | None
) -> None:
    """As models of Hugging Face are exported; answers whose length nobody knows cannot be cut."""
    inputs = [tensor(name, "INT64", ["batch", "tokens"]) for name in ("input_ids", mask)]
    outputs = [tensor("sum", "INT64", ["batch", length])]

    _, spec = served(onnx_model(tmp_path / "text.onnx", inputs, outputs, "Add"))

    assert {pad} == {one.pad for one in spec.inputs.values()}


def test_several_outputs_are_by_name(tmp_path: Path) -> None:
    """Of any types that the protocol has."""
    path = onnx_model(
        tmp_path / "top.onnx",
        [tensor("x", "FLOAT", ["n", 3])],
        [tensor("values", "FLOAT", ["n", 1]), tensor("places", "INT64", ["n", 1])],
        "TopK",
        np.array([1], np.int64),
    )

    model, spec = served(path)

    found = model.predict(np.array([[1, 3, 2]], np.float32))
    assert {"values": [[3.0]], "places": [[1]]} == {n: a.tolist() for n, a in found.items()}
    assert ["values", "places"] == list(spec.outputs)


def test_an_output_without_a_shape_is_tried(tmp_path: Path) -> None:
    """Exporters leave shapes out; two rows of zeros tell the rank."""
    x = tensor("x", "FLOAT", ["n", "m", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)

    _, spec = served(onnx_model(tmp_path / "relu.onnx", [x], [y], "Relu"))

    assert 2 == len(spec.outputs["y"].shape)


def test_a_graph_that_halves_lengths_is_warmed_up_at_one_that_it_takes(tmp_path: Path) -> None:
    """Zeros of length 1 are no row of it; the example is."""
    path = onnx_model(
        tmp_path / "pool.onnx",
        [tensor("x", "FLOAT", ["n", 1, "width", "width"])],
        [tensor("y", "FLOAT", ["n", 1, None, None])],
        "MaxPool",
        kernel_shape=[8, 8],
    )

    _, spec = served(path)

    assert (1, 32, 32) == np.shape(spec.example)
    assert served(iris_model(tmp_path / "iris.onnx"))[1].example is None


def test_texts_are_json_items(tmp_path: Path) -> None:
    """The value itself, one a row."""
    path = onnx_model(
        tmp_path / "same.onnx",
        [tensor("text", "STRING", ["n"])], [tensor("same", "STRING", ["n"])], "Identity",
    )  # fmt: skip

    model, spec = served(path)

    assert ["a", "b"] == model.predict(["a", "b"])
    assert "" == spec.example
    assert {} == spec.inputs


def test_a_classifiers_maps_are_objects(tmp_path: Path) -> None:
    """skl2onnx exports them unless it is told not to."""
    of_map = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    output = helper.make_value_info("scores", helper.make_sequence_type_proto(of_map))
    path = onnx_model(
        tmp_path / "maps.onnx",
        [tensor("x", "FLOAT", ["n", 2])], [output], "ZipMap",
        domain="ai.onnx.ml", classlabels_strings=["no", "yes"],
    )  # fmt: skip

    model, spec = served(path)

    assert [{"no": 0.25, "yes": 0.75}] == model.predict([[0.25, 0.75]])
    assert [0.0, 0.0] == spec.example


@pytest.mark.parametrize("shape", [[1, 4], [], None], ids=str)
def test_a_first_dimension_that_is_no_batch_is_refused(tmp_path: Path, shape: Any) -> None:
    """With the remedy: rows of several clients could not share it."""
    x, y = tensor("x", "FLOAT", shape), tensor("y", "FLOAT", shape)

    found = refused(onnx_model(tmp_path / "one.onnx", [x], [y], "Relu"))

    assert "input 'x': expected a first dimension of any length" in found
    assert f"got the shape {shape or []}; export it" in found
    assert "dynamic_axes" in found


def test_an_output_without_rows_is_refused(tmp_path: Path) -> None:
    """Of a declared shape, and of none."""
    x = tensor("x", "FLOAT", ["n", 4])
    attributes: dict[str, Any] = {"keepdims": 0}
    for name, shape in (("declared", [4]), ("unknown", None)):
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        axes = np.array([0], np.int64)
        path = onnx_model(tmp_path / f"{name}.onnx", [x], [y], "ReduceSum", axes, **attributes)
        assert "output 'y': expected" in refused(path)


def test_an_input_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Neither JSON nor the protocol has a word for it."""
    ends = [tensor(name, "BFLOAT16", ["n"]) for name in ("x", "y")]

    assert "input 'x': expected numbers or strings, got tensor(bfloat16)" in refused(
        onnx_model(tmp_path / "odd.onnx", ends[:1], ends[1:], "Identity")
    )


def damaged(path: Path, content: bytes) -> Path:
    """A file with that in it."""
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected onnx, found nothing in it"),
        (bytes(1000), "expected onnx, found nothing but zeros in it"),
        (b"\x80\x04.", "there is a pickle in it"),
        (b"PK\x03\x04..", "there is a ZIP archive in it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "`git lfs pull` fetches the file"),
        (b"something else", "it may be cut off"),
    ],
    ids=str,
)
def test_another_file_is_named_by_what_is_in_it(tmp_path: Path, content: bytes, said: str) -> None:
    """Before the words of the library, which knows protobuf alone."""
    assert said in refused(damaged(tmp_path / "a.onnx", content))


def test_a_gigabyte_of_zeros_is_refused_at_once(tmp_path: Path) -> None:
    """By its first bytes: a library would read all of it into memory."""
    with (tmp_path / "a.onnx").open("wb") as file:
        file.truncate(1 << 30)

    assert "found nothing but zeros in it" in refused(tmp_path / "a.onnx")


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    """A copy that was cut off."""
    whole = iris_model(tmp_path / "iris.onnx").read_bytes()

    assert "it may be cut off" in refused(damaged(tmp_path / "half.onnx", whole[: len(whole) // 2]))


def test_an_opset_that_is_too_new_is_refused(tmp_path: Path) -> None:
    """With the number that the library takes."""
    model = onnx.load(iris_model(tmp_path / "iris.onnx"))
    model.opset_import[0].version = 99
    onnx.save(model, tmp_path / "new.onnx")

    assert "Opset 99" in refused(tmp_path / "new.onnx").replace("opset", "Opset")


def test_a_gpu_needs_the_library_for_it(tmp_path: Path) -> None:
    """Else the replica would pay for a GPU, and compute on the CPU."""
    said = refused(iris_model(tmp_path / "iris.onnx"), device="cuda:0")

    assert "install onnxruntime-gpu" in said


def test_a_missing_library_is_told_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image that serves classes has none of them."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    said = refused(iris_model(tmp_path / "iris.onnx"))

    assert "onnx needs onnxruntime, which is not installed: pip install 'batchedapi[onnx]'" in said


def test_a_folder_is_its_one_file(tmp_path: Path) -> None:
    """As buckets and claims have them."""
    (tmp_path / "1").mkdir()
    iris_model(tmp_path / "1" / "model.onnx")
    assert served(tmp_path)[1].single_input

    iris_model(tmp_path / "another.onnx")
    assert "expected one file .onnx in the folder, got 1/model.onnx, another.onnx" in refused(
        tmp_path
    )
