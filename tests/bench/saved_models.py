"""Saved models like W1 and W3 of `workloads.py`, and each in a class as people write it.

W1: the sum of 64 numbers, all overhead. W3: a forest, and a net whose weights are more to read than
to multiply: each costs much for a batch and little for a row.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import joblib
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from workloads import MAX_BATCH, WIDTH

from batchedapi_serving import Tensor, batched

_RANDOM: Final = np.random.default_rng(7)
_SIZES: Final = (WIDTH, 2048, 2048, 1)
_TREES: Final = 150
X: Final = _RANDOM.random((256, WIDTH), np.float32)


class OfSklearn:
    """A pickle of scikit-learn."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Takes the file."""
        self._model = joblib.load(config["file"])

    @batched(
        inputs=Tensor("FP64", [WIDTH]), outputs=Tensor("FP64", [], name="predict"),
        max_batch_size=MAX_BATCH,
    )  # fmt: skip
    def predict(self, rows: Any) -> Any:
        """float64 (n, 64) -> float64 (n,)."""
        return self._model.predict(rows)


class OfOnnx:
    """An ONNX file, with one thread, as its replica has it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Takes the file."""
        self._session = session_of(config["file"])

    @batched(
        inputs=Tensor("FP32", [WIDTH], name="x"), outputs=Tensor("FP32", [1], name="y"),
        max_batch_size=MAX_BATCH,
    )  # fmt: skip
    def predict(self, rows: Any) -> Any:
        """float32 (n, 64) -> float32 (n, 1)."""
        return self._session.run(["y"], {"x": rows})[0]


def session_of(file: str) -> Any:
    """A session with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def save(workload: str, format_: str, folder: Path) -> Path:
    """Write W1 or W3 as sklearn or onnx; its file."""
    if format_ == "sklearn":
        model = RandomForestRegressor(_TREES) if workload == "W3" else LinearRegression()
        joblib.dump(model.fit(X, X.sum(axis=1)), folder / "model.joblib")
        return folder / "model.joblib"
    layers = [
        (_RANDOM.standard_normal((n, m)) / n**0.5).astype(np.float32)
        for n, m in itertools.pairwise(_SIZES)
    ]
    _save_net(folder / "model.onnx", layers if workload == "W3" else [np.ones((WIDTH, 1), "f4")])
    return folder / "model.onnx"


def _save_net(path: Path, layers: Sequence[Any]) -> None:
    """Matrix products, with Relu between them."""
    nodes, last = [], "x"
    for i, _ in enumerate(layers):
        out = "y" if i == len(layers) - 1 else f"h{i}"
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [out]))
        last = out if out == "y" else f"{out}r"
        if out != "y":
            nodes.append(helper.make_node("Relu", [out], [last]))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("x", WIDTH), ("y", 1))
    )
    weights = [numpy_helper.from_array(one, f"w{i}") for i, one in enumerate(layers)]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
