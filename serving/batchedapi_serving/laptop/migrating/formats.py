"""Saved models that need no code of the user's: how each format is loaded, and called."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchedapi_serving.laptop.migrating.migration import MARK

_FILE_OF: Final = (
    'next(one for one in sorted([path, *path.rglob("*")]) if one.suffix in {suffixes})'
)


class Format(NamedTuple):
    """One format of files, as code."""

    imports: tuple[str, ...]
    load: str
    """Makes the model of `file`, a Path."""
    call: str
    """Answers of `x`: an array of rows first, or arrays by name; may use names of tensors."""
    suffixes: tuple[str, ...]


_NUMPY: Final = "import numpy as np"
ROWS: Final = {
    "sklearn": Format(
        ("import joblib", _NUMPY), "joblib.load(file)", "self.model.predict(x)",
        (".joblib", ".pkl", ".pickle"),
    ),
    "xgboost": Format(
        ("import xgboost", _NUMPY), "xgboost.Booster(model_file=str(file))",
        "self.model.predict(xgboost.DMatrix(x))", (".bst", ".json", ".ubj"),
    ),
    "lightgbm": Format(
        ("import lightgbm", _NUMPY), "lightgbm.Booster(model_file=str(file))",
        "self.model.predict(x)", (".bst", ".txt"),
    ),
}  # fmt: skip
"""Rows of numbers in, an answer for each out; no shape needs to be known."""
TENSORS: Final = {
    "onnxruntime": Format(
        ("import onnxruntime",), "onnxruntime.InferenceSession(str(file))",
        "dict(zip({outputs!r}, self.model.run({outputs!r}, x)))", (".onnx",),
    ),
    "pytorch": Format(
        ("import torch",), "torch.jit.load(file, map_location=context.device).eval()",
        "self.tensors(x)", (".pt",),
    ),
}  # fmt: skip
"""Arrays by name in and out."""
_TORCH: Final = """

    @torch.inference_mode()
    def tensors(self, x):
        found = self.model(*[torch.from_numpy(x[name]).to(self.device) for name in {inputs!r}])
        found = found if isinstance(found, tuple) else (found,)
        return {{name: y.cpu().numpy() for name, y in zip({outputs!r}, found)}}"""


def rows_class(class_name: str, model: Format) -> str:
    """A class for the file below `context.model_path`."""
    found = _FILE_OF.format(suffixes=model.suffixes)
    return f"""\
class {class_name}:
    def __init__(self, context):
        path = Path(context.model_path)
        file = {found}
        self.model = {model.load}

    @batched(example=None){MARK}the body of one request, which `batchedapi check` asks with
    def predict(self, items):  # instances of n clients -> n predictions
        x = np.asarray(items)
        return {model.call}.tolist()"""


def tensors_class(
    class_name: str,
    format_: str,
    file: str,
    inputs: tuple[str, Sequence[str]],
    outputs: tuple[str, Sequence[str]],
) -> str:
    """A class for a file beside it; tensors are their code, and their names in order."""
    model = TENSORS[format_]
    names = {"inputs": list(inputs[1]), "outputs": list(outputs[1])}
    more = _TORCH.format(**names) if format_ == "pytorch" else ""
    return f"""\
class {class_name}:
    def __init__(self, context):
        self.device = context.device
        file = Path(__file__).parent / {file!r}
        self.model = {model.load}

    @batched(
        inputs={inputs[0]},
        outputs={outputs[0]},
    )
    def predict(self, x):  # arrays by name, rows of n clients first
        return {model.call.format(**names)}{more}"""
