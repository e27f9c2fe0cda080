"""From `module:Class` to a running predictor, or to the reason why there is none."""

import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchedapi_serving.errors import LoadError
from batchedapi_serving.predictor.api import Context
from batchedapi_serving.predictor.served import default_method, served_methods

__all__ = ["default_method", "load_class", "served_methods", "start_predictor"]

log = logging.getLogger(__name__)


def load_class(path: str, search: Sequence[Path]) -> type:
    """Import the class that `path` (`module:Class` or `file.py:Class`) names.

    Args:
        path: From `spec.predictor.path`.
        search: Folders put in front of sys.path, first first.

    Raises:
        LoadError: ImportFailed, with the last line of the traceback.
    """
    module_name, _, class_name = path.partition(":")
    module_name = module_name.removesuffix(".py")
    for folder in reversed([str(folder) for folder in search]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code: anything may be raised
        log.error("predictor import failed", extra={"traceback": traceback.format_exc()})  # noqa: TRY400 - one event with facts
        places = ", ".join(str(folder) for folder in search)
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: importing {module_name!r} raised"
            f" {_last_line(error)} (looked in {places})",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: module {module_name!r} has no class {class_name!r}",
        )
    return found


def start_predictor(predictor_class: type, config: dict[str, Any], context: Context) -> Any:
    """Call the constructor with (config, context).

    Raises:
        LoadError: InitFailed or OutOfMemory, with the last line of the traceback.
    """
    try:
        return predictor_class(config, context)
    except MemoryError as error:
        raise LoadError(
            "OutOfMemory", f"{predictor_class.__name__}(config, context) ran out of memory"
        ) from error
    except Exception as error:  # user code: anything may be raised
        log.error("predictor init failed", extra={"traceback": traceback.format_exc()})  # noqa: TRY400 - one event with facts
        raise LoadError(
            "InitFailed",
            f"{predictor_class.__name__}(config, context) raised {_last_line(error)}",
        ) from error


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
