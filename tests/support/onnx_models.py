"""Small ONNX models, made node by node.

from onnx_models import onnx_model, tensor
onnx_model(path, [tensor("x", "FLOAT", ["n", 4])], [tensor("y", "FLOAT", ["n", 4])], "Relu")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


def tensor(name: str, dtype: str, shape: Sequence[int | str | None] | None) -> Any:
    """One input or output; `dtype` is a name of onnx.TensorProto."""
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), shape)


def onnx_model(
    path: Path,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    operator: str,
    *constants: "np.ndarray[Any, Any]",
    opset: int = OPSET,
    domain: str = "",
    **attributes: Any,
) -> Path:
    """Write a model of one node, whose further inputs are `constants`; its path."""
    names = [f"constant{i}" for i in range(len(constants))]
    node = helper.make_node(
        operator,
        [*(one.name for one in inputs), *names],
        [one.name for one in outputs],
        domain=domain,
        **attributes,
    )
    weights = [numpy_helper.from_array(a, n) for a, n in zip(constants, names, strict=True)]
    graph = helper.make_graph([node], "graph", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)
    return path


def iris_model(path: Path) -> Path:
    """Four numbers `sepals` a row; the first three are its `scores`."""
    return onnx_model(
        path,
        [tensor("sepals", "FLOAT", ["n", 4])],
        [tensor("scores", "FLOAT", ["n", 3])],
        "MatMul",
        np.eye(4, 3, dtype=np.float32),
    )
