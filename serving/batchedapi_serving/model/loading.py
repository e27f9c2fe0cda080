"""From `module:Class` to the methods it serves and a running predictor, or to the reason why not.

Which methods are served, and how: the class says, and the manifest beats it.
"""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import summary_of, traceback_of
from batchedapi_serving.predictor import Context, Tensor
from batchedapi_serving.predictor.api import MARK, Declared, batch_dim_problem, named_tensors
from batchedapi_serving.predictor.spec import (
    PREDICT,
    SINGLE_INPUT,
    SINGLE_OUTPUT,
    MethodSpec,
    padded,
)
from batchedapi_serving.settings import MethodSettings, ReplicaSettings

log = logging.getLogger(__name__)
_OWN: Final = Path(__file__).resolve().parents[1]
_LIBRARY: Final = (str(Path(os.__file__).parent), str(Path(os.__file__).parent / "lib-dynload"))
"""Folders of the standard library."""
CONSTRUCTOR: Final = ("config", "context")
"""Arguments of a predictor's class."""
REQUEST: Final = ("payload", "query_params", "headers")
"""Arguments of a method that takes one request at a time."""
BESIDE_ROWS: Final = ("attention_mask", "lengths")
"""Further arguments of a method whose rows have named lengths, if it declares them."""


def program_of(path: str, search: Sequence[Path]) -> str:
    """The sys.argv[0] of a script: the file with the class, else the module."""
    name = path.partition(":")[0].removesuffix(".py")
    files = (folder / f"{name.replace('.', '/')}.py" for folder in search)
    return next((str(file) for file in files if file.exists()), name)


def load_class(path: str, search: Sequence[Path]) -> type:
    """Import the class that `path` (`module:Class` or `file.py:Class`) names.

    Args:
        search: Folders put into sys.path behind the standard library, first first.

    Raises:
        LoadError: ImportFailed, with the last line of the traceback.
    """
    module_name, _, class_name = path.partition(":")
    module_name = module_name.removesuffix(".py")
    behind = 1 + max((sys.path.index(one) for one in _LIBRARY if one in sys.path), default=-1)
    for folder in reversed([str(folder.absolute()) for folder in search]):
        if folder not in sys.path:
            sys.path.insert(behind, folder)
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        log.error("predictor import failed", extra={"traceback": traceback_of(error)})  # noqa: TRY400 - one event with facts
        remedy = _remedy(error, search) or _remedy_of_absent(error, module_name, search)
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: importing {module_name!r} raised"
            f" {summary_of(error)}{_place(error, search)}{remedy}",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        but = "" if found is None else f", but a {type(found).__name__} of that name"
        but += _hidden(module_name, search)
        raise LoadError(
            "ImportFailed",
            f"spec.predictor.path {path!r}: module {module_name!r} has no class"
            f" {class_name!r}{but}",
        )
    return found


def start_predictor(predictor_class: type, config: dict[str, Any], context: Context) -> Any:
    """Call the constructor with those of (config, context) that it takes; it may be left out.

    Raises:
        LoadError: InitFailed or OutOfMemory, with the last line of the traceback.
    """
    problem = _problem_of_setup(predictor_class)
    if problem is not None:
        raise LoadError("InitFailed", problem)
    try:
        return taking(predictor_class, CONSTRUCTOR)(config, context)
    except MemoryError as error:
        raise LoadError(
            "OutOfMemory", f"{predictor_class.__name__}(config, context) ran out of memory"
        ) from error
    except BaseException as error:
        log.error("predictor init failed", extra={"traceback": traceback_of(error)})  # noqa: TRY400 - one event with facts
        file = getattr(sys.modules.get(predictor_class.__module__), "__file__", None)
        folder = Path(file or os.devnull).parent
        remedy = _remedy(error, [folder])
        try:
            taking(predictor_class, CONSTRUCTOR)
        except TypeError:
            remedy = "; write def __init__(self, config, context), or fewer of them"
        raise LoadError(
            "InitFailed",
            f"{predictor_class.__name__}(config, context) raised {summary_of(error)}"
            f"{_place(error, [folder])}{remedy}",
        ) from error


def taking(function: Callable[..., Any], given: Sequence[str]) -> Callable[..., Any]:
    """`function` as one that takes all of `given` by position, and gets those that it declares.

    Whatever takes all of them by position gets them so. Else a parameter gets the argument of its
    name, and a first one of another name gets the first: `predict(self, row)`, `predict(self,
    payload, headers)`, `__init__(self, context)`.

    Raises:
        TypeError: a parameter without default has no such name.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # written in C: only a call tells
        return function
    try:
        signature.bind(*given)
    except TypeError:
        pass
    else:
        return function
    chosen = {name: given.index(name) for name in signature.parameters if name in given}
    first = next(iter(signature.parameters.values()), None)
    if given == REQUEST and first is not None and first.kind is first.POSITIONAL_OR_KEYWORD:
        chosen.setdefault(first.name, 0)
    signature.bind(**dict.fromkeys(chosen))

    def call(*arguments: Any) -> Any:
        return function(**{name: arguments[index] for name, index in chosen.items()})

    return call


def _remedy(error: BaseException, search: Sequence[Path]) -> str:
    """The remedy for an error of loading, if that can be told from it."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return (
            "; the lines above in the log say why, and what is for a command line alone belongs"
            ' below if __name__ == "__main__":'
        )
    if isinstance(error, ImportError):
        return _hidden(error.name or "", search)
    if isinstance(error, AttributeError) and inspect.ismodule(error.obj):
        return _hidden(error.obj.__name__, search)
    return ""


def _remedy_of_absent(error: BaseException, module_name: str, search: Sequence[Path]) -> str:
    """The same where the module itself is not found, or another that it imports."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    if module_name != error.name and not module_name.startswith(f"{error.name}."):
        return "; install it where the predictor runs"
    return f" (looked in {', '.join(dict.fromkeys(map(str, search)))})"


def _hidden(module_name: str, search: Sequence[Path]) -> str:
    """A hint at a file of the user's that is not imported under that name."""
    name = module_name.partition(".")[0]
    if name in sys.stdlib_module_names:
        for path in (path for folder in search for path in (folder / f"{name}.py", folder / name)):
            if path.exists():
                return f"; {path} is not imported, as Python's library has a {name!r}: rename it"
    return ""


def _place(error: BaseException, folders: Sequence[Path]) -> str:
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


def _problem_of_setup(predictor_class: type) -> str | None:
    """Why a class that LitServe would set up has no model here; None: it is another's."""
    setup = _attribute(predictor_class, "setup")
    if not inspect.isfunction(setup) or "device" not in inspect.signature(setup).parameters:
        return None
    made_by = next(
        base for base in predictor_class.__mro__ if {"__init__", "__new__"} & {*vars(base)}
    )
    if made_by is not object and made_by.__module__.partition(".")[0] != "litserve":
        return None
    return (
        f"{predictor_class.__name__}: setup(device) is not called here, and there is no constructor"
        " that would; write def __init__(self, config, context): self.setup(context.device)"
    )


MAX_METHODS: Final = 32  # each has its block in the metrics memory, whose size is fixed at start


def served_methods(predictor_class: type, settings: ReplicaSettings) -> list[MethodSpec]:
    """`predict`, every `@batched` and `@endpoint`, and every method that the manifest names.

    `max_batch_size` and `batch_dim` of each are the effective ones. A manifest may serve an
    unmarked method in batches of JSON items (`batched: true`), and a `@batched` one in batches of
    one row (`batched: false`). One that takes one request at a time may still have a size above
    one: what waited together is then run one by one.

    Raises:
        LoadError: ImportFailed; the message names the method and what to write instead.
    """
    named = [method.name for method in settings.methods]
    names = list(dict.fromkeys([PREDICT, *declared_methods(predictor_class), *named]))
    specs = []
    for name in names:
        spec = method_spec(predictor_class, name)
        if spec is not None:
            spec = _effective(predictor_class, spec, settings.of_method(name))
            problem = _problem(predictor_class, spec)
            if problem is not None:
                raise _failed(predictor_class, name, problem)
            specs.append(spec)
        elif name in named:
            raise _failed(
                predictor_class,
                name,
                "the manifest names this method, which the class does not have; write"
                f" def {name}(self, ...), or take it out of methods",
            )
    _check_all(predictor_class, specs)
    return _sized(specs, settings)


def _problem(predictor_class: type, spec: MethodSpec) -> str | None:
    """Why the method cannot be served; None: it can."""
    if spec.batched and spec.streams:
        return (
            "yields its answer, which a batch cannot do; return it whole, or leave out @batched"
            " (batched: true in the manifest) to stream it to one request at a time"
        )
    function = _attribute(predictor_class, spec.name)
    beside = beside_rows(_plain(function), spec)
    problem = call_problem(predictor_class, spec.name, batched=spec.batched, beside=beside)
    return problem or _problem_beside(predictor_class, spec.name)


def _sized(specs: Sequence[MethodSpec], settings: ReplicaSettings) -> list[MethodSpec]:
    """The methods, with sizes above one also where requests are run one by one."""
    # A size that is said of all methods is meant for those that take many rows, if there are any;
    # one that takes one request at a time is run in batches of its own.
    said = {method.name: method for method in settings.methods}
    alone = not any(spec.batched for spec in specs)
    found = []
    for spec in specs:
        size = settings.of_method(spec.name).batching.max_batch_size or 1
        refused = spec.name in said and said[spec.name].batched is False
        whole = not (spec.batched or spec.streams)
        meant = (spec.name in said or alone) and whole and not refused
        found.append(dataclasses.replace(spec, max_batch_size=size) if meant else spec)
    return found


def _effective(predictor_class: type, spec: MethodSpec, settings: MethodSettings) -> MethodSpec:
    """The method as the manifest wants it."""
    declared = spec.batched and is_batchable(predictor_class, spec.name)
    batching = declared if settings.batched is None else settings.batched
    if batching and not spec.batched and is_declared(predictor_class, spec.name):
        raise _failed(
            predictor_class,
            spec.name,
            "is marked @endpoint, which takes one request at a time, but the manifest says"
            " batched: true; mark it with @batched, or leave batched out",
        )
    size = settings.batching.max_batch_size or spec.max_batch_size
    spec = dataclasses.replace(
        spec, batched=spec.batched or batching, max_batch_size=size if batching else 1
    )
    spec = _with_batch_dim(predictor_class, spec, settings.batch_dim)
    return dataclasses.replace(spec, inputs=padded(spec.inputs)) if settings.batching.pads else spec


def _with_batch_dim(
    predictor_class: type, spec: MethodSpec, batch_dim: tuple[int, int] | None
) -> MethodSpec:
    if batch_dim is not None and not spec.batched:
        raise _failed(
            predictor_class,
            spec.name,
            "takes one request at a time, but the manifest gives it a batchDim; mark it with"
            " @batched(inputs=Tensor(...)), or leave batchDim out",
        )
    spec = dataclasses.replace(spec, batch_dim=batch_dim or spec.batch_dim)
    problem = batch_dim_problem(spec.batch_dim, spec.inputs, spec.outputs)
    if problem is not None:
        raise _failed(predictor_class, spec.name, f"{problem} (batchDim of the manifest)")
    return spec


def _check_all(predictor_class: type, specs: Sequence[MethodSpec]) -> None:
    name = predictor_class.__name__
    if not specs:
        raise LoadError(
            "ImportFailed",
            f"{name}: expected a method {PREDICT!r}, or one marked @batched or @endpoint; write"
            f" @batched above def {PREDICT}(self, ...)",
        )
    if len(specs) > MAX_METHODS:
        raise LoadError(
            "ImportFailed",
            f"{name}: expected at most {MAX_METHODS} methods, got {len(specs)}; serve some from a"
            " BatchedAPI of their own",
        )


def _failed(predictor_class: type, name: str, message: str) -> LoadError:
    return LoadError("ImportFailed", f"{predictor_class.__name__}.{name}: {message}")


def method_spec(predictor_class: type, name: str) -> MethodSpec | None:
    """The method that `predictor_class.name` declares; None if there is none."""
    function = _attribute(predictor_class, name)
    if function is None or not callable(getattr(predictor_class, name, None)):
        return None
    declared = declared_of(predictor_class, name)
    streams = yields(predictor_class, name)
    return MethodSpec(
        name,
        batched=declared.batched,
        is_async=streams or inspect.iscoroutinefunction(inspect.unwrap(_plain(function))),
        streams=streams,
        inputs=named_tensors(declared.inputs, SINGLE_INPUT, "inputs"),
        single_input=isinstance(declared.inputs, Tensor),
        outputs=named_tensors(declared.outputs, SINGLE_OUTPUT, "outputs"),
        single_output=declared.outputs is None or isinstance(declared.outputs, Tensor),
        batch_dim=(declared.batch_dim[0], declared.batch_dim[1]),
        max_batch_size=declared.max_batch_size,
        size_of=declared.size_of,
        example=declared.example,
    )


def declared_methods(predictor_class: type) -> list[str]:
    """Names of the methods marked with `@batched` or `@endpoint`, sorted."""
    return sorted(name for name in dir(predictor_class) if is_declared(predictor_class, name))


def declared_of(predictor_class: type, name: str) -> Declared:
    """The decorator's words about that method; without one, it takes one request."""
    return _mark_of(_attribute(predictor_class, name)) or Declared(batched=False)


def is_declared(predictor_class: type, name: str) -> bool:
    """Whether that method carries one of our decorators."""
    return _mark_of(_attribute(predictor_class, name)) is not None


def is_batchable(predictor_class: type, name: str) -> bool:
    """Whether that method does not say `batchable=False`."""
    declared = _mark_of(_attribute(predictor_class, name))
    return declared is None or declared.batchable


def yields(predictor_class: type, name: str) -> bool:
    """Whether that method is a generator, async or not."""
    function = _plain(_attribute(predictor_class, name))
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def beside_rows(function: Callable[..., Any], spec: MethodSpec) -> tuple[str, ...]:
    """Names of what the method gets beside its rows: see BESIDE_ROWS."""
    if not (spec.variable and inspect.isroutine(function)):
        return ()
    declared = inspect.signature(function, follow_wrapped=False).parameters
    return tuple(name for name in BESIDE_ROWS if name in declared)


def call_problem(
    predictor_class: type, name: str, *, batched: bool, beside: Sequence[str] = ()
) -> str | None:
    """Why that method cannot be called as the server calls it; None: it can, or only a call tells.

    Found out here, and not by the first client: a method that takes one request has no warm-up.
    """
    function = _attribute(predictor_class, name)
    takes = ("rows",) if batched else REQUEST
    if not inspect.isfunction(_plain(function)):
        return None
    # Of a decorator's wrapper its own: what it calls may take something else.
    signature = inspect.signature(_plain(function), follow_wrapped=False)
    own = () if isinstance(function, staticmethod) else ("self",)
    called = functools.partial(_plain(function), *own) if own else _plain(function)
    try:
        if batched:
            signature.bind(*own, *takes, **dict.fromkeys(beside))
        else:
            taking(called, REQUEST)
    except TypeError:
        kind = "many rows" if batched else "one request"
        fewer = ", or fewer of them; for many rows at once, mark it with @batched"
        return (
            f"takes {kind} at a time and is called with ({', '.join(takes)}), but is written as"
            f" {name}{signature}; write def {name}({', '.join((*own, *takes))})"
            f"{'' if batched else fewer}"
        )
    return None


def _problem_beside(predictor_class: type, name: str) -> str | None:
    """Why its decode or encode cannot be called; None: they can, or there are none."""
    declared = declared_of(predictor_class, name)
    for place, beside, takes in (
        ("decode", declared.decode, "payload"),
        ("encode", declared.encode, "answer"),
    ):
        if beside is None:
            continue
        write = f"write def {beside}(self, {takes})"
        function = _attribute(predictor_class, beside)
        if function is None or not callable(getattr(predictor_class, beside, None)):
            return f"{place}={beside!r}: there is no such method; {write}"
        if yields(predictor_class, beside):
            return f"{place}={beside!r}: it yields its answer; return it whole"
        if place == "decode":
            problem = call_problem(predictor_class, beside, batched=False)
            if problem is not None:
                return f"{place}={beside!r}: {problem}"
        elif inspect.isfunction(_plain(function)):
            signature = inspect.signature(_plain(function), follow_wrapped=False)
            own = () if isinstance(function, staticmethod) else ("self",)
            try:
                signature.bind(*own, takes)
            except TypeError:
                return (
                    f"{place}={beside!r}: is called with one answer, but is written as"
                    f" {beside}{signature}; {write}"
                )
    return None


def _attribute(predictor_class: type, name: str) -> Any:
    """As written in the class or a base; the metaclass is not asked: every type has a __call__."""
    for base in predictor_class.__mro__:
        if base is not object and name in vars(base):
            return vars(base)[name]
    return None


def _plain(function: Any) -> Any:
    return function.__func__ if isinstance(function, staticmethod | classmethod) else function


def _mark_of(function: Any) -> Declared | None:
    found = getattr(function, MARK, None) or getattr(_plain(function), MARK, None)
    return found if isinstance(found, Declared) else None
