"""Models that are served without code: a predictor class is made of each file.

    class_of ── one module for each family of formats ── tensors, items ── interface

What is known of a file is known once it is open, so its module opens it and writes the class
around it, with what users write: `batched` and `Tensor`. The libraries are extras, and imported
where a file needs them.
"""

import importlib
from typing import Final

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats.interface import ModelFile, check_content, content_of, refused
from batchedapi_serving.logs import summary_of
from batchedapi_serving.predictor import fork_safe

__all__ = ["ModelFile", "class_of"]

_MODULES: Final = {
    ModelFormat.ONNX: "onnx_file",
    ModelFormat.SKLEARN: "estimators",
    ModelFormat.XGBOOST: "estimators",
    ModelFormat.LIGHTGBM: "estimators",
    ModelFormat.TORCHSCRIPT: "torch_files",
    ModelFormat.TORCH_EXPORT: "torch_files",
    ModelFormat.HUGGINGFACE: "huggingface",
    ModelFormat.KERAS: "keras_file",
}


def class_of(file: ModelFile) -> type:
    """The class that serves the file.

    Raises:
        LoadError: InitFailed, with what was expected, what is there, and what to do.
    """
    check_content(file)
    module = importlib.import_module(f"{__name__}.{_MODULES[file.format]}")
    try:
        found: type = module.class_of(file)
    except (LoadError, MemoryError):
        raise
    except Exception as error:
        said = summary_of(error).splitlines()[0]  # the rest are stacks of C++
        raise refused(
            file, f"cannot be loaded as {file.format} ({content_of(file.file)}): {said}"
        ) from error
    return fork_safe(found)
