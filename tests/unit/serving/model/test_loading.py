"""From `module:Class` to a running predictor, or to a reason that names the place."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchedapi_serving import Context
from batchedapi_serving.errors import LoadError
from batchedapi_serving.model.loading import REQUEST, load_class, start_predictor, taking

CONTEXT = Context("api", 0, 1, 1, "cpu")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Imports of a test are its own."""
    path, modules = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def load(folder: Path, code: str, path: str = "its_model:Model") -> type:
    """The class out of a module with that code."""
    (folder / "its_model.py").write_text(code)
    return load_class(path, [folder])


@pytest.mark.parametrize("path", ["its_model:Model", "its_model.py:Model"])
def test_a_class_is_found_in_the_folder(tmp_path: Path, path: str) -> None:
    """As a module, and as a file."""
    assert load(tmp_path, "class Model: ...", path).__name__ == "Model"


def test_the_first_folder_wins(tmp_path: Path) -> None:
    """The manifest's folder, then the working directory."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "its_model.py").write_text(f"class Model: origin = {name!r}")

    found: Any = load_class("its_model:Model", [tmp_path / "a", tmp_path / "b"])

    assert found.origin == "a"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("def (", "SyntaxError"),
        ("class Other: ...", "has no class 'Model'"),
        ("Model = 3", "has no class 'Model'"),
    ],
)
def test_an_import_that_fails_names_path_and_cause(tmp_path: Path, code: str, message: str) -> None:
    """The last line of the traceback is what tells; the whole is in the log."""
    with pytest.raises(LoadError, match=message) as caught:
        load(tmp_path, code)

    assert caught.value.reason == "ImportFailed"
    assert "spec.predictor.path 'its_model:Model'" in str(caught.value)


def test_a_missing_module_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """A wrong working directory is the usual cause."""
    with pytest.raises(LoadError, match=str(tmp_path)):
        load_class("nowhere_at_all:Model", [tmp_path])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("\nclass Model", r"SyntaxError: .* \(.*its_model.py, line 2\)$"),
        ("\n\nint('x')", r"ValueError: .* \(.*its_model.py, line 3\)$"),
        (
            "from batchedapi_serving import Tensor\nTensor('float32', [4])",
            r"got 'float32'; did you mean FP32\? \(.*its_model.py, line 2\)$",
        ),
        (
            """from batchedapi_serving import batched
class Model:
    @batched(inputs=[4])
    def predict(self, x): ...""",
            r"expected inputs to be a Tensor or a mapping .* got \[4\] \(.*its_model.py, line 3\)$",
        ),
        ("import of_nobody", r"line 1\); install it where the predictor runs$"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, code: str, message: str) -> None:
    """The innermost of the user's own: a line of ours or of a library helps nobody."""
    with pytest.raises(LoadError, match=message):
        load(tmp_path, code)


def test_a_module_that_is_not_there_has_no_line(tmp_path: Path) -> None:
    """The only frames are Python's own."""
    with pytest.raises(LoadError, match=r"'nowhere_at_all' \(looked in [^,]*\)$"):
        load_class("nowhere_at_all:Model", [tmp_path, tmp_path])


def test_a_function_is_no_class(tmp_path: Path) -> None:
    """Servers that take a function are common."""
    with pytest.raises(LoadError, match="no class 'Model', but a function of that name"):
        load(tmp_path, "def Model(): ...")


def test_a_constructor_that_takes_something_else_is_told_what_to_write() -> None:
    """`takes 1 positional argument but 3 were given` does not say which."""

    class Other:
        def __init__(self, weights: str) -> None:
            raise NotImplementedError

    with pytest.raises(LoadError, match=r"write def __init__\(self, config, context\), or fewer"):
        start_predictor(Other, {}, CONTEXT)


def test_a_constructor_may_be_left_out_or_take_less() -> None:
    """S1 hands over what is declared; most predictors need no context."""

    class Bare: ...

    class Configured:
        def __init__(self, config: Any) -> None:
            self.taken = config

    class Placed:
        def __init__(self, context: Any, *, scale: int = 2) -> None:
            self.taken = (context, scale)

    assert isinstance(start_predictor(Bare, {"a": 1}, CONTEXT), Bare)
    assert {"a": 1} == start_predictor(Configured, {"a": 1}, CONTEXT).taken
    assert (CONTEXT, 2) == start_predictor(Placed, {"a": 1}, CONTEXT).taken


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda payload: payload, "p"),
        (lambda row: row, "p"),
        (lambda headers, payload: (headers, payload), ("h", "p")),
        (lambda row, query_params, *, unit="cm": (row, query_params, unit), ("p", "q", "cm")),
        (lambda *everything: everything, ("p", "q", "h")),
        (lambda payload, query, headers: (payload, query, headers), ("p", "q", "h")),
    ],
)
def test_a_method_gets_what_it_declares(function: Callable[..., Any], expected: Any) -> None:
    """All three by position, or those that it names; the first is the payload by any name."""
    assert expected == taking(function, REQUEST)("p", "q", "h")


@pytest.mark.parametrize(
    "function",
    [lambda payload, header: (payload, header), lambda a, b: (a, b), lambda row, /: row],
)
def test_a_parameter_that_nobody_gives_is_refused(function: Callable[..., Any]) -> None:
    """A guess would hand somebody's headers to a parameter that is something else."""
    with pytest.raises(TypeError):
        taking(function, REQUEST)


def test_the_constructor_gets_config_and_context() -> None:
    """C05: and nothing else."""

    class Remembers:
        def __init__(self, *arguments: Any) -> None:
            self.arguments = arguments

    predictor = start_predictor(Remembers, {"a": 1}, CONTEXT)

    assert ({"a": 1}, CONTEXT) == predictor.arguments


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (ValueError("no such file: w.bin"), "InitFailed", "raised ValueError: no such file: w.bin"),
        (MemoryError(), "OutOfMemory", "ran out of memory"),
    ],
)
def test_a_constructor_that_fails_has_its_own_reason(
    error: Exception, reason: str, message: str
) -> None:
    """Out of memory asks for another remedy than a mistake."""

    class Fails:
        def __init__(self, *_: Any) -> None:
            raise error

    with pytest.raises(LoadError, match=message) as caught:
        start_predictor(Fails, {}, CONTEXT)

    assert reason == caught.value.reason


class SetUp:
    """As LitServe has it."""

    def setup(self, device: str) -> None:
        """Never called here."""
        self.model = device

    def predict(self, items: Any) -> Any:
        """Has no model."""
        return items


def test_a_class_that_waits_to_be_set_up_is_told_what_to_write() -> None:
    """Else it is ready, and every client is told that it has no attribute `model`."""

    class Own(SetUp):
        def __init__(self, context: Context) -> None:
            self.setup(context.device)

    class Unlike(SetUp):
        def setup(self, model: str) -> None:  # type: ignore[override]
            """Called by somebody else."""

    with pytest.raises(
        LoadError, match=r"write def __init__.*self\.setup\(context\.device\)"
    ) as error:
        start_predictor(SetUp, {}, CONTEXT)

    assert "InitFailed" == error.value.reason
    assert "cpu" == start_predictor(Own, {}, CONTEXT).model
    assert isinstance(start_predictor(Unlike, {}, CONTEXT), Unlike)


def test_a_constructor_that_fails_is_told_with_its_text() -> None:
    """Also where the text is followed by notes, or there is no way to have it."""

    class Noted:
        def __init__(self) -> None:
            error = FileNotFoundError(2, "no such file", "weights.bin")
            error.add_note("look elsewhere")
            raise error

    class Silent:
        def __init__(self) -> None:
            class SilentError(Exception):
                def __str__(self) -> str:
                    raise KeyboardInterrupt

            raise SilentError

    class Panics:
        def __init__(self) -> None:
            class PanicException(BaseException):
                """A panic of an extension in Rust."""

            raise PanicException("called `Result::unwrap()`")

    with pytest.raises(LoadError, match=r"raised .*PanicException: called `Result::unwrap"):
        start_predictor(Panics, {}, CONTEXT)
    with pytest.raises(LoadError, match=r"raised FileNotFoundError: .*weights\.bin'"):
        start_predictor(Noted, {}, CONTEXT)
    with pytest.raises(LoadError, match="SilentError: <exception str"):
        start_predictor(Silent, {}, CONTEXT)
