"""Formats of models that are served without code, and the file names that tell them."""

import enum
import re
from typing import Final


class ModelFormat(enum.StrEnum):
    """Formats of models that are served without code."""

    ONNX = "onnx"
    SKLEARN = "sklearn"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    TORCHSCRIPT = "torchscript"
    TORCH_EXPORT = "torch-export"
    HUGGINGFACE = "huggingface"
    KERAS = "keras"


SUFFIXES: Final = {
    "onnx": ModelFormat.ONNX,
    "joblib": ModelFormat.SKLEARN,
    "pickle": ModelFormat.SKLEARN,
    "pkl": ModelFormat.SKLEARN,
    "skops": ModelFormat.SKLEARN,
    "json": ModelFormat.XGBOOST,
    "ubj": ModelFormat.XGBOOST,
    "txt": ModelFormat.LIGHTGBM,
    "pt": ModelFormat.TORCHSCRIPT,
    "pt2": ModelFormat.TORCH_EXPORT,
    "keras": ModelFormat.KERAS,
}
"""Ends of file names that tell the format; a name such as `model.bst` may be of two."""
_SUFFIX: Final = rf"[.]({'|'.join(SUFFIXES)})([?].*)?$"
_HUB: Final = "hf://"
NAME_THAT_TELLS: Final = f"^{_HUB}|{_SUFFIX}"
"""Pattern of an address that tells the format; what follows a '?' is the query of https."""


def format_of_name(name: str) -> ModelFormat | None:
    """The format that the end of a file's name or address tells; None: it tells none."""
    told = re.search(_SUFFIX, name)
    if told:
        return SUFFIXES[told[1]]
    return ModelFormat.HUGGINGFACE if name.startswith(_HUB) else None
