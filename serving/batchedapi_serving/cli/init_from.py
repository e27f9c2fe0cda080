"""The class that a model's file would be, as code to be changed; see formats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.predictor import MethodSpec, Tensor


class _Code(NamedTuple):
    """How a format is loaded and called."""

    imports: str
    load: str
    one: str
    """Answer of `x`, one array or the items; {method} is the method, {first} the input's name."""
    many: str = ""
    """Answers by name of arrays by name; {inputs} and {outputs} are lists of names."""


_EACH: Final = "[torch.from_numpy(x[name]) for name in {inputs}]"
_TORCH: Final = (
    "self.model(torch.from_numpy(x)).detach().numpy()",
    f"dict(zip({{outputs}}, (y.detach().numpy() for y in self.model(*{_EACH}))))",
)
_CODE: Final = {
    ModelFormat.ONNX: _Code(
        "import onnxruntime", "onnxruntime.InferenceSession(context.model_path)",
        "self.model.run(None, {{{first!r}: x}})[0]",
        "dict(zip({outputs}, self.model.run(None, x)))",
    ),
    ModelFormat.SKLEARN: _Code(
        "import joblib", "joblib.load(context.model_path)", "self.model.{method}(x)"
    ),
    ModelFormat.XGBOOST: _Code(
        "import xgboost", "xgboost.Booster(model_file=context.model_path)",
        "self.model.inplace_predict(x)",
    ),
    ModelFormat.LIGHTGBM: _Code(
        "import lightgbm", "lightgbm.Booster(model_file=context.model_path)",
        "self.model.predict(x)",
    ),
    ModelFormat.TORCHSCRIPT: _Code("import torch", "torch.jit.load(context.model_path)", *_TORCH),
    ModelFormat.TORCH_EXPORT: _Code(
        "import torch", "torch.export.load(context.model_path).module()", *_TORCH
    ),
    ModelFormat.HUGGINGFACE: _Code(
        "from transformers import pipeline", "pipeline(model=context.model_path)",
        "self.model(x, batch_size=len(x))",
    ),
    ModelFormat.KERAS: _Code(
        "import keras", "keras.saving.load_model(context.model_path)",
        "self.model.predict_on_batch(x)",
        "dict(zip({outputs}, self.model.predict_on_batch([x[name] for name in {inputs}])))",
    ),
}  # fmt: skip


def class_text(path: Path, format_: ModelFormat, methods: Sequence[MethodSpec]) -> str:
    """A module with a class Model that loads the file and has those methods."""
    code = _CODE[format_]
    if path.suffix == ".skops":
        code = code._replace(imports="import skops.io", load="skops.io.load(context.model_path)")
    parts = [_method_text(code, method) for method in methods]
    names = "Tensor, batched" if any(method.inputs for method in methods) else "batched"
    return f"""\
{code.imports}

from batchedapi_serving import {names}


class Model:
    def __init__(self, context):
        self.model = {code.load}

{"".join(parts).rstrip()}
"""


def _method_text(code: _Code, method: MethodSpec) -> str:
    call = (code.one if method.single_input and method.single_output else code.many) or code.one
    if not method.inputs:
        call = f"list({code.one})"
    told = call.format(
        method=method.name,
        first=next(iter(method.inputs), ""),
        inputs=list(method.inputs),
        outputs=list(method.outputs),
    )
    marks = "    @batched\n"
    if method.inputs:
        marks = f"""\
    @batched(
        inputs={_tensors(method.inputs, single=method.single_input)},
        outputs={_tensors(method.outputs, single=method.single_output)},
    )
"""
    rows = "arrays, rows of n clients first" if method.inputs else "JSON items of n clients"
    return f"""\
{marks}    def {method.name}(self, x):  # {rows}
        return {told}

"""


def _tensors(tensors: Mapping[str, Tensor], *, single: bool) -> str:
    if single:
        ((name, one),) = tensors.items()
        return repr(Tensor(one.dtype, one.shape, allow_non_finite=one.allow_non_finite, name=name))
    return "{" + ", ".join(f"{name!r}: {tensor}" for name, tensor in tensors.items()) + "}"
