"""TorchScript and torch.export: programs, with the names, types and shapes that they know.

An exported program knows all of them. TorchScript knows names alone: `predictor.config.inputs` says
the rest, `{x: {datatype: FP32, shape: [4]}}`, a row of each input by its name; names such as
`INPUT__0`, as Triton has them, are of arguments by their place. `outputs` may name what it answers,
in its order or likewise.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.errors import brief
from batchedapi_serving.formats.interface import ModelFile, check_rows, imported, refused
from batchedapi_serving.formats.tensors import Run, datatype_of, tensor_of, tensors_class, zeros_of
from batchedapi_serving.predictor import Tensor

_REMEDY: Final = "export it with torch.export.Dim for the first dimension of each input"
_LONGER: Final = 3
_PLACED: Final = re.compile(".+__([0-9]+)")


def class_of(file: ModelFile) -> type:
    """See formats.class_of."""
    torch = imported(file, "torch", "torch")
    if not file.trusted:
        raise refused(
            file,
            f"{file.format} is a program, with pickles beside it, and runs with all that torch can"
            " do; if you know who made it set spec.predictor.model.trusted: true (--trusted), else"
            " have it exported to ONNX",
        )
    if file.format is ModelFormat.TORCHSCRIPT:
        module = torch.jit.load(str(file.file), map_location=file.device).eval()
        inputs = _configured(file, [one.name for one in module.forward.schema.arguments[1:]])
    else:
        program = torch.export.load(file.file)
        inputs = _exported(file, torch, program)
        module = program.module().to(file.device)

    def run(x: Mapping[str, Any]) -> dict[str, Any]:
        rows = [torch.from_numpy(x[name]).to(file.device) for name in inputs]
        with torch.inference_mode():
            return {name: y.cpu().numpy() for name, y in _named(file, module(*rows)).items()}

    return tensors_class(inputs, _outputs(file, inputs, run), run)


def _named(file: ModelFile, answer: Any) -> dict[str, Any]:
    """A module's answer, by name."""
    if isinstance(answer, Mapping):
        return dict(answer)
    several = isinstance(answer, tuple | list)
    values = list(answer) if several else [answer]
    names = [f"output_{i}" for i in range(len(values))] if several else ["output"]
    told = file.config.get("outputs", names)
    if not isinstance(told, list) or len(told) != len(names):
        expected = f"spec.predictor.config.outputs: expected {len(names)} names"
        raise refused(file, f"{expected}, got {brief(told)}")
    return dict(zip(_by_place(told) or map(str, told), values, strict=True))


def _by_place(names: Sequence[Any]) -> list[str] | None:
    """Names such as `INPUT__0` in the order of their numbers; None: one of them has no number."""
    placed = [match for name in names if (match := _PLACED.fullmatch(str(name)))]
    if len(placed) < len(names):
        return None
    return [match[0] for match in sorted(placed, key=lambda match: int(match[1]))]


def _configured(file: ModelFile, names: Sequence[str]) -> dict[str, Tensor]:
    """Rows as the manifest has them, for a program that knows no more than names."""
    told = file.config.get("inputs")
    if isinstance(told, Mapping) and len(told) == len(names):
        names = _by_place(list(told)) or names
    if not isinstance(told, Mapping) or set(told) != set(names):
        raise refused(
            file,
            f"TorchScript says neither types nor shapes of its inputs, {', '.join(names)}: expected"
            " a row of each in spec.predictor.config.inputs, such as"
            f" {{{names[0]}: {{datatype: FP32, shape: [4]}}}}, got {brief(told)}",
        )
    try:
        return {
            name: tensor_of(name, told[name]["datatype"], told[name]["shape"]) for name in names
        }
    except (KeyError, TypeError, ValueError) as error:
        raise refused(
            file, f"spec.predictor.config.inputs: expected datatype and shape of each: {error}"
        ) from error


def _exported(file: ModelFile, torch: Any, program: Any) -> dict[str, Tensor]:
    """Rows of each input, from the values that the program was exported with."""
    found = {}
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in program.graph_signature.user_inputs:
            continue
        value = node.meta["val"]
        check_rows(file, f"input {node.name!r}", value.shape, _REMEDY)
        lengths = [n if isinstance(n, int) else str(n) for n in value.shape[1:]]
        dtype = torch.empty(0, dtype=value.dtype).numpy().dtype
        found[node.name] = tensor_of(node.name, datatype_of(dtype), lengths)
    return found


def _outputs(file: ModelFile, inputs: Mapping[str, Tensor], run: Run) -> dict[str, Tensor]:
    """Rows of each output, of two rows of zeros whose variable lengths are 2, and then longer.

    A length that changes with them has the name of the inputs' if these have one, else its own.
    """
    answers = [run(zeros_of(inputs, length)) for length in (2, _LONGER)]
    names = {name for tensor in inputs.values() for name in tensor.names}
    found = {}
    for name, array in answers[0].items():
        if array.shape[:1] != (2,):
            raise refused(
                file,
                f"{name}: expected 2 rows for 2, got the shape {list(array.shape)}; {_REMEDY}",
            )
        pairs = zip(array.shape[1:], answers[1][name].shape[1:], strict=True)
        lengths = [
            n if n == m else "".join(names) if len(names) == 1 and m == _LONGER else f"{name}_{i}"
            for i, (n, m) in enumerate(pairs, 1)
        ]
        found[name] = tensor_of(name, datatype_of(array.dtype), lengths)
    return found
