"""From `module:Class` to a running predictor, or to the reason why there is none."""

import importlib
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from batchedapi_serving.errors import LoadError
from batchedapi_serving.predictor.api import Context
from batchedapi_serving.predictor.served import default_method, served_methods

__all__ = ["default_method", "load_class", "served_methods", "start_predictor"]

log = logging.getLogger(__name__)
_OWN: Final = Path(__file__).resolve().parents[1]


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
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: importing {module_name!r} raised"
            f" {_last_line(error)}{_place(error, search)}{_remedy(error, module_name, search)}",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        but = "" if found is None else f", but a {type(found).__name__} of that name"
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: module {module_name!r} has no class"
            f" {class_name!r}{but}",
        )
    return found


def _remedy(error: Exception, module_name: str, search: Sequence[Path]) -> str:
    """What to do about a module that is missing."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    if module_name == error.name or module_name.startswith(f"{error.name}."):
        places = dict.fromkeys(str(folder) for folder in search)
        return f" (looked in {', '.join(places)})"
    return "; install it where the predictor runs"


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
            f"{predictor_class.__name__}(config, context) raised {_last_line(error)}"
            f"{_place(error, [_folder_of(predictor_class)])}{_signature_remedy(predictor_class)}",
        ) from error


def _signature_remedy(predictor_class: type) -> str:
    try:
        inspect.signature(predictor_class).bind("config", "context")
    except TypeError:
        return "; write def __init__(self, config, context)"
    except ValueError:  # written in C
        pass
    return ""


def _folder_of(predictor_class: type) -> Path:
    file = getattr(sys.modules.get(predictor_class.__module__), "__file__", None)
    return Path(file or os.devnull).parent


def _place(error: Exception, folders: Sequence[Path]) -> str:
    """The innermost line of the user's own files that an error came through, in words."""
    roots = [folder.resolve() for folder in folders]
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    for filename, line in reversed(frames):
        file = Path(filename).resolve()
        if filename.startswith("<") or "site-packages" in file.parts or _OWN in file.parents:
            continue
        if any(file.is_relative_to(root) for root in roots):
            return f" ({filename}, line {line})"
    return ""


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
