"""scikit-learn, XGBoost and LightGBM: their methods, with the types that they really answer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import pandas as pd
import pytest
import skops.io
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import ItemError, Tensor
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats import ModelFile, class_of
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.loading import declared_methods, method_spec
from batchedapi_serving.predictor import MethodSpec

X = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.0]] * 5)
KINDS = np.array([0, 0, 1, 1] * 5)
FRAME = pd.DataFrame(X, columns=["width", "height"])
SKLEARN, XGBOOST, LIGHTGBM = ModelFormat.SKLEARN, ModelFormat.XGBOOST, ModelFormat.LIGHTGBM


def served(
    path: Path, format_: ModelFormat, *, trusted: bool = False
) -> tuple[Any, dict[str, MethodSpec]]:
    """A predictor of the file, and its methods."""
    found = class_of(ModelFile(path, format_, trusted=trusted))
    specs = {name: method_spec(found, name) for name in declared_methods(found)}
    return found(), {name: spec for name, spec in specs.items() if spec is not None}


def pickled(folder: Path, model: Any) -> tuple[Any, dict[str, MethodSpec]]:
    """The same of a pickle that is trusted."""
    joblib.dump(model, folder / "model.joblib")
    return served(folder / "model.joblib", SKLEARN, trusted=True)


def refused(path: Path, format_: ModelFormat, *, trusted: bool = False) -> str:
    """The sentence for a file that is not served."""
    with pytest.raises(LoadError) as caught:
        served(path, format_, trusted=trusted)
    assert "InitFailed" == caught.value.reason
    return str(caught.value)


def test_a_folder_of_a_known_format_may_have_a_name_that_tells_none(tmp_path: Path) -> None:
    """`model.bst` is what KServe and MLServer look for, of XGBoost and of LightGBM."""
    xgboost.XGBClassifier(n_estimators=2).fit(X, KINDS).save_model(tmp_path / "model.ubj")
    (tmp_path / "model.ubj").rename(tmp_path / "model.bst")

    model, _ = served(tmp_path, XGBOOST)

    assert KINDS[:4].tolist() == model.predict(X[:4].astype(np.float32)).tolist()


def test_a_classifier_has_predict_and_predict_proba(tmp_path: Path) -> None:
    """Rows of as many numbers as it was trained on; answers of the type that it gives."""
    trained = LogisticRegression().fit(X, KINDS)
    skops.io.dump(trained, tmp_path / "kinds.skops")

    model, specs = served(tmp_path / "kinds.skops", SKLEARN)

    assert {"input": Tensor("FP64", [2])} == specs["predict"].inputs
    assert {"predict": Tensor("INT64", [])} == specs["predict"].outputs
    scores = {"predict_proba": Tensor("FP64", [2], allow_non_finite=True)}
    assert scores == specs["predict_proba"].outputs
    assert trained.predict(X).tolist() == model.predict(X).tolist()
    assert trained.predict_proba(X).tolist() == model.predict_proba(X).tolist()


def test_a_transformer_has_transform_alone(tmp_path: Path) -> None:
    """As the class has it. It takes NaN, at which a classifier raises."""
    _, specs = pickled(tmp_path, StandardScaler().fit(X))

    assert ["transform"] == list(specs)
    assert specs["transform"].inputs["input"].allow_non_finite


def test_an_infinite_value_is_a_client_s_error_where_nan_alone_is_taken(tmp_path: Path) -> None:
    """Most of scikit-learn that takes NaN raises at it, which would be the class's error."""
    scaler, specs = pickled(tmp_path, StandardScaler().fit(X))
    runner = BatchRunner(scaler, list(specs.values()))
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0]])

    meta, (body,) = runner.run({"method": "transform", "rows": 1}, rows[1:].tobytes())
    both = runner.run({"method": "transform", "rows": 2}, rows.tobytes())[0]
    other = runner.run({"method": "transform", "rows": 1}, rows[:1].tobytes())[0]

    assert 422 == meta["items"][0][0]
    assert b"input: expected numbers or NaN, got Infinity" in bytes(body)
    assert (422, "raised ItemError", "tensors") == (both["status"], both["error"], other["kind"])


def test_an_infinite_value_is_taken_where_the_model_takes_it(tmp_path: Path) -> None:
    """It splits at a value, on one side of which it is."""
    trained = HistGradientBoostingClassifier(max_iter=2).fit(X, KINDS)

    model, _ = pickled(tmp_path, trained)

    rows = np.array([[np.nan, np.inf], [-np.inf, 1.0]])
    assert trained.predict(rows).tolist() == model.predict(rows).tolist()


def test_a_sparse_answer_is_an_array(tmp_path: Path) -> None:
    """No protocol has a word for a sparse one."""
    encoder = OneHotEncoder(handle_unknown="ignore").fit(KINDS[:, None])

    model, specs = pickled(tmp_path, encoder)

    assert (2,) == specs["transform"].outputs["transform"].shape
    assert [[0.0, 1.0]] == model.transform(np.array([[1.0]])).tolist()


def test_labels_that_are_texts_are_json(tmp_path: Path) -> None:
    """A list of rows is answered by a list, as of tensors."""
    model, specs = pickled(tmp_path, LogisticRegression().fit(X, np.array(["no", "yes"])[KINDS]))

    assert {} == specs["predict"].inputs
    assert ["no", ["no", "yes"]] == model.predict([[0, 1], [[0, 1], [3, 0]]])
    assert isinstance(model.predict([[0, 1, 2]])[0], ItemError)


def test_names_of_columns_take_objects_and_rows(tmp_path: Path) -> None:
    """A frame with texts in it, of rows in any order of members."""
    frame = pd.DataFrame({"age": [1, 2, 3, 4], "city": ["Ulm", "Bonn"] * 2})
    encoded = ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="passthrough")
    trained = make_pipeline(encoded, LinearRegression()).fit(frame, [1, 2, 3, 4])

    model, _ = pickled(tmp_path, trained)

    found = model.predict([{"city": "Ulm", "age": 1}, [2, "Bonn"], {"age": 3}])
    assert [1, 2] == [round(one) for one in found[:2]]
    assert isinstance(found[2], ItemError)


def test_a_pipeline_of_texts_takes_texts(tmp_path: Path) -> None:
    """It says neither how many columns it takes nor their names."""
    trained = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good", "bad"], [1, 0])

    model, specs = pickled(tmp_path, trained)

    assert [1, 0] == model.predict(["good", "bad"])
    assert {"predict", "predict_proba"} == set(specs)


def test_several_outputs_are_those_of_each_row(tmp_path: Path) -> None:
    """scikit-learn answers a list with an array for each output."""
    both = MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([KINDS, 1 - KINDS], axis=1))

    model, specs = pickled(tmp_path, both)

    assert (2, 2) == specs["predict_proba"].outputs["predict_proba"].shape
    assert (len(X), 2, 2) == model.predict_proba(X).shape


class Payload:
    """A pickle of it makes a folder while it is loaded."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self.folder,)


def test_a_pickle_that_executes_is_not_loaded_without_trust(tmp_path: Path) -> None:
    """The message says why; nothing ran."""
    joblib.dump(Payload(str(tmp_path / "executed")), tmp_path / "model.joblib")

    said = refused(tmp_path / "model.joblib", SKLEARN)

    assert "a pickle runs whatever code is in it while it is loaded" in said
    assert "spec.predictor.model.trusted: true (--trusted)" in said
    assert not (tmp_path / "executed").exists()


def test_a_type_that_skops_does_not_know_needs_trust(tmp_path: Path) -> None:
    """Skops runs the code of types, and knows those of scikit-learn."""
    skops.io.dump(make_pipeline(FunctionTransformer(np.log1p)).fit(X), tmp_path / "known.skops")
    assert "transform" in served(tmp_path / "known.skops", SKLEARN)[1]

    skops.io.dump(make_pipeline(FunctionTransformer(os.mkdir)), tmp_path / "model.skops")
    said = refused(tmp_path / "model.skops", SKLEARN)

    assert "which skops does not take for safe" in said
    assert "mkdir" in said


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    """A pickle may hold anything."""
    joblib.dump({"weights": [1]}, tmp_path / "model.joblib")

    said = refused(tmp_path / "model.joblib", SKLEARN, trusted=True)

    assert "expected a model with predict, predict_proba, transform" in said


def test_a_model_that_does_not_take_zeros_is_told_to_be_a_class(tmp_path: Path) -> None:
    """The type of an answer cannot be known without one."""
    model = make_pipeline(OneHotEncoder(handle_unknown="error"), LinearRegression())
    joblib.dump(model.fit(X + 1, KINDS), tmp_path / "model.joblib")

    said = refused(tmp_path / "model.joblib", SKLEARN, trusted=True)

    assert "predict of two rows of zeros, by which the answer's type is found, raised" in said
    assert "write a class" in said


@pytest.mark.parametrize(
    ("trainer", "methods"),
    [
        (xgboost.XGBRegressor, {"predict"}),
        (xgboost.XGBClassifier, {"predict", "predict_proba"}),
        (xgboost.XGBRFRegressor, {"predict"}),
    ],
)
@pytest.mark.parametrize("end", ["json", "ubj"])
def test_files_of_xgboost(tmp_path: Path, trainer: Any, methods: set[str], end: str) -> None:
    """Of either of its formats; a classifier answers classes, as where it was trained."""
    trained = trainer(n_estimators=3).fit(X, KINDS)
    trained.save_model(tmp_path / f"model.{end}")

    model, specs = served(tmp_path / f"model.{end}", XGBOOST)

    assert methods == set(specs)
    assert Tensor("FP32", [2], allow_non_finite=True) == specs["predict"].inputs["input"]
    np.testing.assert_allclose(trained.predict(X), model.predict(X.astype("<f4")))


def test_files_of_lightgbm(tmp_path: Path) -> None:
    """A classifier answers scores, as its file has no more."""
    trained = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(X, KINDS), 3)
    trained.save_model(tmp_path / "model.txt")

    model, specs = served(tmp_path / "model.txt", LIGHTGBM)

    assert {"predict"} == set(specs)
    np.testing.assert_allclose(trained.predict(X), model.predict(X))


def test_names_in_files_of_boosters_take_objects(tmp_path: Path) -> None:
    """A list in their order is a row as well."""
    row, named = [3.0, 0.0], {"height": 0.0, "width": 3.0}
    first = xgboost.XGBClassifier(n_estimators=3).fit(FRAME, KINDS)
    first.save_model(tmp_path / "a.json")
    data = lightgbm.Dataset(FRAME, KINDS)
    second = lightgbm.train({"objective": "regression", "verbose": -1}, data, 3)
    second.save_model(tmp_path / "b.txt")

    model, _ = served(tmp_path / "a.json", XGBOOST)
    another, _ = served(tmp_path / "b.txt", LIGHTGBM)

    assert [first.predict([row])[0]] * 2 == model.predict([row, named])
    assert [second.predict([row])[0]] * 2 == another.predict([row, named])


def test_threads_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boosters take every CPU that they see, which several processes would share."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    xgboost.XGBRegressor(n_estimators=3).fit(X, KINDS).save_model(tmp_path / "model.json")

    model, _ = served(tmp_path / "model.json", XGBOOST)

    assert (len(X),) == model.predict(X.astype("<f4")).shape


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("a.joblib", SKLEARN), ("a.skops", SKLEARN), ("a.json", XGBOOST), ("a.ubj", XGBOOST),
        ("a.txt", LIGHTGBM),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", ["half", b"other", b"{}", b"PK\x03\x04"])
def test_another_file_or_half_of_one_is_refused(
    tmp_path: Path, name: str, format_: ModelFormat, content: bytes | str
) -> None:
    """In one sentence, whatever the library does at it; LightGBM would end the process."""
    path = tmp_path / name
    if isinstance(content, str):
        if format_ is SKLEARN:
            trained = LinearRegression().fit(X, KINDS)
            (skops.io.dump if name == "a.skops" else joblib.dump)(trained, path)
        elif format_ is XGBOOST:
            xgboost.XGBRegressor(n_estimators=3).fit(X, KINDS).save_model(path)
        else:
            data = lightgbm.Dataset(X, KINDS)
            lightgbm.train({"objective": "regression", "verbose": -1}, data, 3).save_model(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)

    said = refused(path, format_, trusted=True)

    assert f"spec.predictor.model '{name}': cannot be loaded as {format_}" in said
    assert "\n" not in said
