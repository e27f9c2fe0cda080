"""Which methods of a predictor are served, and how: the class says, and the manifest beats it."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from batchedapi_core.batching import ShapePolicy
from batchedapi_serving.errors import LoadError
from batchedapi_serving.predictor.declared import (
    batch_dim_problem,
    call_problem,
    declared_methods,
    is_declared,
    method_spec,
    yields,
)
from batchedapi_serving.predictor.method import MethodSpec
from batchedapi_serving.settings import MethodSettings, ReplicaSettings

PREDICT: Final = "predict"
"""Served whether it is marked or not, and the default of several."""
MAX_METHODS: Final = 32  # each has its block in the metrics memory, whose size is fixed at start


def served_methods(predictor_class: type, settings: ReplicaSettings) -> list[MethodSpec]:
    """`predict`, every `@batched` and `@endpoint`, and every method that the manifest names.

    `max_batch_size` and `batch_dim` of each are the effective ones. A manifest may serve an
    unmarked method in batches of JSON items (`batched: true`), and a `@batched` one in batches of
    one row (`batched: false`).

    Raises:
        LoadError: ImportFailed; the message names the method and what to write instead.
    """
    named = [method.name for method in settings.methods]
    names = list(dict.fromkeys([PREDICT, *declared_methods(predictor_class), *named]))
    specs = []
    for name in names:
        spec = method_spec(predictor_class, name)
        if spec is None and name in named:
            raise _failed(
                predictor_class,
                name,
                "the manifest names this method, which the class does not have; write"
                f" def {name}(self, ...), or take it out of methods",
            )
        if spec is not None:
            effective = _effective(predictor_class, spec, settings.of_method(name))
            _check_call(predictor_class, effective)
            specs.append(effective)
    _check_all(predictor_class, specs, settings)
    return specs


def default_method(specs: Sequence[MethodSpec]) -> str | None:
    """The method behind a path that names none: `predict`, else the only one."""
    names = [spec.name for spec in specs]
    if PREDICT in names:
        return PREDICT
    return names[0] if len(names) == 1 else None


def _effective(predictor_class: type, spec: MethodSpec, settings: MethodSettings) -> MethodSpec:
    """The method as the manifest wants it."""
    spec = _with_batching(predictor_class, spec, settings)
    if settings.batch_dim is not None:
        if not spec.batched:
            raise _failed(
                predictor_class,
                spec.name,
                "takes one request at a time, but the manifest gives it a batchDim; mark it with"
                " @batched(inputs=Tensor(...)), or leave batchDim out",
            )
        spec = dataclasses.replace(spec, batch_dim=settings.batch_dim)
    problem = batch_dim_problem(spec.batch_dim, spec.inputs, spec.outputs)
    if problem is not None:
        raise _failed(predictor_class, spec.name, f"{problem} (batchDim of the manifest)")
    if spec.variable and settings.batching.shape_policy is ShapePolicy.REJECT:
        raise _failed(
            predictor_class,
            spec.name,
            f"{', '.join(spec.variable)} differs from row to row, which shapePolicy Reject refuses;"
            " write a length into the Tensor, or choose shapePolicy Bucket or Pad",
        )
    return spec


def _with_batching(predictor_class: type, spec: MethodSpec, settings: MethodSettings) -> MethodSpec:
    batching = spec.batched if settings.batched is None else settings.batched
    size = settings.batching.max_batch_size
    if not batching:
        return dataclasses.replace(spec, max_batch_size=1)
    if not spec.batched:
        if is_declared(predictor_class, spec.name):
            raise _failed(
                predictor_class,
                spec.name,
                "is marked @endpoint, which takes one request at a time, but the manifest says"
                " batched: true; mark it with @batched, or leave batched out",
            )
        spec = dataclasses.replace(spec, batched=True)
    return dataclasses.replace(spec, max_batch_size=size or spec.max_batch_size)


def _check_call(predictor_class: type, spec: MethodSpec) -> None:
    if yields(predictor_class, spec.name):
        raise _failed(
            predictor_class, spec.name, "yields its answer; collect it and return it whole"
        )
    problem = call_problem(predictor_class, spec.name, batched=spec.batched)
    if problem is not None:
        raise _failed(predictor_class, spec.name, problem)


def _check_all(
    predictor_class: type, specs: Sequence[MethodSpec], settings: ReplicaSettings
) -> None:
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
    named = {method.name for method in settings.methods}
    alone = not any(spec.batched for spec in specs)
    for spec in specs:
        size = settings.of_method(spec.name).batching.max_batch_size
        if not spec.batched and (spec.name in named or alone) and size is not None and size > 1:
            raise _failed(
                predictor_class,
                spec.name,
                f"takes one request at a time, but serverSideBatching.maxBatchSize is {size};"
                " mark it with @batched, or leave maxBatchSize out",
            )


def _failed(predictor_class: type, name: str, message: str) -> LoadError:
    return LoadError("ImportFailed", f"{predictor_class.__name__}.{name}: {message}")
