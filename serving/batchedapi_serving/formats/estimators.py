"""scikit-learn, XGBoost and LightGBM: `predict`, `predict_proba` and `transform` are methods.

A model that was trained on numbers without names takes tensors; each answer's type and shape are
those that it gives for two rows of zeros. One that knows the names of its columns takes JSON items,
objects or lists, as does one that does not say how many columns there are.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.formats.interface import (
    ZIP,
    ModelFile,
    content_of,
    head_of,
    imported,
    refused,
    threads,
)
from batchedapi_serving.formats.items import ItemColumn, answers_of
from batchedapi_serving.formats.tensors import Array, datatype_of
from batchedapi_serving.formats.ubjson import check_whole
from batchedapi_serving.logs import summary_of
from batchedapi_serving.predictor import DTYPES, SINGLE_INPUT, ItemError, Tensor, batched

METHODS: Final = ("predict", "predict_proba", "transform")


class Estimator(NamedTuple):
    """A loaded model."""

    methods: dict[str, Callable[[Any], Any]]
    columns: int | None
    """None: nobody knows; a pipeline may begin with texts."""
    names: Sequence[str] | None
    dtype: str = "FP64"
    """Of the numbers that it takes."""


def class_of(file: ModelFile) -> type:
    """See formats.class_of."""
    estimator = _LOADERS[file.format](file)
    if not estimator.methods:
        raise refused(file, f"expected a model with {', '.join(METHODS)}, and it has none of them")
    made = {name: _method(file, estimator, name, call) for name, call in estimator.methods.items()}
    return type("Model", (), made)


def _method(
    file: ModelFile, estimator: Estimator, name: str, call: Callable[[Any], Any]
) -> Callable[..., Any]:
    if estimator.names is None and estimator.columns is not None:
        takes_nan = _takes(call, estimator.columns, np.nan)
        nan_alone = takes_nan and not _takes(call, estimator.columns, np.inf)
        tensor = Tensor(estimator.dtype, [estimator.columns], allow_non_finite=takes_nan)
        answer = _answer_to_zeros(file, name, call, tensor)
        dtype = datatype_of(answer.dtype)
        if dtype in DTYPES and answer.shape[:1] == (2,):
            shape, floats = answer.shape[1:], dtype.startswith("FP")
            output = Tensor(dtype, shape, allow_non_finite=floats, name=name)

            @batched(inputs=tensor, outputs=output)
            def of_tensors(_: Any, x: Array) -> Array:
                if nan_alone and np.isinf(x).any():
                    raise ItemError(422, f"{SINGLE_INPUT}: expected numbers or NaN, got Infinity")
                return _array(call(x))

            return of_tensors
    return _method_of_items(estimator, name, call)


def _takes(call: Callable[[Any], Any], columns: int, value: float) -> bool:
    """Whether a row of NaN, or of Infinity, is one; most of scikit-learn raise at either."""
    with contextlib.suppress(Exception):
        call(np.full((1, columns), value))
        return True
    return False


def _method_of_items(
    estimator: Estimator, name: str, call: Callable[[Any], Any]
) -> Callable[..., Any]:
    columns: list[ItemColumn] = []
    frame: Callable[[Any], Any] = _frame
    if estimator.names is not None:
        columns = [ItemColumn(column) for column in estimator.names]
    elif estimator.columns is not None:
        columns = [
            ItemColumn(SINGLE_INPUT, np.dtype(DTYPES[estimator.dtype]), (estimator.columns,))
        ]
        frame = itemgetter(SINGLE_INPUT)

    @batched
    def of_items(_: Any, items: list[Any]) -> list[Any]:
        if columns:
            return answers_of(columns, items, lambda x: {name: _array(call(frame(x)))})
        return list(_array(call(items)).tolist())

    return of_items


def _answer_to_zeros(
    file: ModelFile, name: str, call: Callable[[Any], Any], tensor: Tensor
) -> Array:
    try:
        return _array(call(np.zeros((2, *tensor.fixed_shape), tensor.numpy_dtype)))
    except Exception as error:
        raise refused(
            file,
            f"{name} of two rows of zeros, by which the answer's type is found, raised"
            f" {summary_of(error)}; write a class, whose example it takes",
        ) from error


def _array(answer: Any) -> Array:
    """Rows first: of a sparse matrix or a frame, or of a list with an array for each output."""
    if isinstance(answer, list) and answer and isinstance(answer[0], np.ndarray):
        return np.stack(answer, axis=1)
    return np.asarray(answer.toarray() if type(answer).__module__.startswith("scipy.") else answer)


def _frame(columns: Any) -> Any:
    import pandas as pd  # noqa: PLC0415 - only models with names of columns need it

    return pd.DataFrame({name: list(values) for name, values in columns.items()}).infer_objects()


def _of_sklearn(file: ModelFile) -> Estimator:
    zipped = head_of(file.file).startswith(ZIP)
    model = _of_skops(file) if zipped else _of_pickle(file)
    found = {name: getattr(model, name) for name in METHODS if callable(getattr(model, name, None))}
    names = getattr(model, "feature_names_in_", None)
    columns = getattr(model, "n_features_in_", None)
    return Estimator(found, columns, None if names is None else list(names))


def _of_pickle(file: ModelFile) -> Any:
    if not file.trusted:
        raise refused(
            file,
            f"expected a file of skops, got another ({content_of(file.file)}); a pickle runs"
            " whatever code is in it while it is loaded: if it is one, and you know who made it,"
            " set spec.predictor.model.trusted: true (--trusted), or save it with skops.io.dump",
        )
    return imported(file, "joblib", "sklearn").load(file.file)


def _of_skops(file: ModelFile) -> Any:
    skops = imported(file, "skops.io", "sklearn")
    unknown = skops.get_untrusted_types(file=file.file)
    if unknown and not file.trusted:
        raise refused(
            file,
            f"it holds {', '.join(unknown)}, which skops does not take for safe; if you know who"
            " made it set spec.predictor.model.trusted: true (--trusted)",
        )
    return skops.load(file.file, trusted=unknown)


def _of_xgboost(file: ModelFile) -> Estimator:
    xgboost = imported(file, "xgboost", "xgboost")
    if file.file.suffix == ".ubj" or head_of(file.file)[:2] in {b"{L", b"{l", b"{i", b"{U", b"{I"}:
        check_whole(file.file)
    booster = xgboost.Booster(model_file=str(file.file))
    if threads():
        booster.set_param({"nthread": threads()})
    columns, names = booster.num_features(), booster.feature_names
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]

    def scores(x: Any) -> Array:
        return np.asarray(booster.inplace_predict(x, validate_features=False))

    if not objective.startswith(("binary:", "multi:")):
        return Estimator({"predict": scores}, columns, names, "FP32")
    classifier = xgboost.XGBClassifier()
    classifier.load_model(str(file.file))
    classifier.set_params(n_jobs=threads() or None)
    found = {"predict": classifier.predict, "predict_proba": classifier.predict_proba}
    return Estimator(found, columns, names, "FP32")


def _of_lightgbm(file: ModelFile) -> Estimator:
    lightgbm = imported(file, "lightgbm", "lightgbm")
    text = file.file.read_text("utf-8", "replace")
    for part, end in (("", "end of trees"), ("\nparameters:", "end of parameters")):
        if part in text and f"\n{end}" not in text:  # else the library ends the process
            raise ValueError(f"expected a line `{end}`, found none")
    booster = lightgbm.Booster(model_str=text)
    columns, names = booster.num_feature(), booster.feature_name()
    if names == [f"Column_{i}" for i in range(columns)]:  # what it calls those without a name
        names = None

    def predict(x: Any) -> Array:
        return np.asarray(booster.predict(x, num_threads=threads()))

    return Estimator({"predict": predict}, columns, names)


_LOADERS: Final = {
    ModelFormat.SKLEARN: _of_sklearn,
    ModelFormat.XGBOOST: _of_xgboost,
    ModelFormat.LIGHTGBM: _of_lightgbm,
}
