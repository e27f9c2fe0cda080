"""Files of Keras as they are, on torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import Tensor
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats import ModelFile, class_of
from batchedapi_serving.model.loading import method_spec

os.environ["KERAS_BACKEND"] = "torch"
import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # Keras on torch


def served(path: Path, *, trusted: bool = False) -> Any:
    """The class of the file."""
    return class_of(ModelFile(path, ModelFormat.KERAS, trusted=trusted))


def refused(path: Path) -> str:
    """The sentence for a file that is not served."""
    with pytest.raises(LoadError) as caught:
        served(path)
    return str(caught.value)


def test_a_model_keeps_its_names(tmp_path: Path) -> None:
    """Those of its layers, as Keras has them."""
    x = keras.Input((4,), name="sepals")
    model = keras.Model(x, keras.layers.Dense(3, name="scores")(x))
    model.save(tmp_path / "iris.keras")

    found = served(tmp_path / "iris.keras")

    spec = method_spec(found, "predict")
    assert spec is not None
    assert {"sepals": Tensor("FP32", [4], allow_non_finite=True)} == spec.inputs
    assert [(3,)] == [output.shape for output in spec.outputs.values()]
    rows = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(model.predict_on_batch(rows), found().predict(rows), rtol=1e-6)


def test_several_inputs_and_outputs_are_by_name(tmp_path: Path) -> None:
    """A dict in, a dict out."""
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    total = keras.layers.Add(name="total")([a, b])
    keras.Model([a, b], {"total": total, "a": a * 2}).save(tmp_path / "two.keras")

    found = served(tmp_path / "two.keras")().predict(
        {name: np.ones((1, 2), np.float32) for name in ("a", "b")}
    )

    assert [[2.0, 2.0]] * 2 == [rows.tolist()[0] for rows in found.values()]


def test_code_in_a_layer_needs_trust(tmp_path: Path) -> None:
    """A Lambda layer is a function of Python."""
    x = keras.Input((2,))
    keras.Model(x, keras.layers.Lambda(lambda y: y * 2)(x)).save(tmp_path / "code.keras")

    assert "cannot be loaded as keras" in refused(tmp_path / "code.keras")
    model = served(tmp_path / "code.keras", trusted=True)()
    assert [[2.0, 2.0]] == model.predict(np.ones((1, 2), np.float32)).tolist()


def test_a_model_of_one_row_is_refused(tmp_path: Path) -> None:
    """With the remedy."""
    x = keras.Input((2,), batch_size=1, name="x")
    keras.Model(x, keras.layers.Dense(1)(x)).save(tmp_path / "one.keras")

    said = refused(tmp_path / "one.keras")

    assert "input 'x': expected a first dimension of any length" in said
    assert "leave batch_size out of keras.Input" in said


@pytest.mark.parametrize("content", [b"other", b"PK\x03\x04"], ids=str)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """In one sentence."""
    (tmp_path / "a.keras").write_bytes(content)

    assert "cannot be loaded as keras" in refused(tmp_path / "a.keras")
