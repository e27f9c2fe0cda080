"""XGBoost would read behind the end of a file that was cut off, and end the process."""

import random
from pathlib import Path

import pytest
import xgboost
from sklearn.datasets import load_iris

from batchedapi_serving.formats.ubjson import check_whole

X, KINDS = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of three classes, with the names of its columns."""
    path = tmp_path_factory.mktemp("ubjson") / "model.ubj"
    xgboost.XGBClassifier(n_estimators=4).fit(X, KINDS).save_model(path)
    return path.read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One to write to."""
    return tmp_path / "a.ubj"


def test_a_whole_model_passes(whole: bytes, file: Path) -> None:
    """Whatever follows it is not looked at."""
    for content in (whole, whole + b"\n"):
        file.write_bytes(content)

        check_whole(file)


def test_it_is_refused_wherever_it_was_cut(whole: bytes, file: Path) -> None:
    """In the middle of a name, a number, an array of numbers, between two."""
    for length in sorted(random.Random(1).sample(range(len(whole)), 500)):
        file.write_bytes(whole[:length])

        with pytest.raises(ValueError, match=r"UBJSON|empty"):
            check_whole(file)


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b"Z", b"i\x01", b"SU\x02ab", b"[#i\x02i\x01Z", b"[$d#i\x01\0\0\0\0",
     b"{U\x01ai\x01U\x01b[TF]}", b"{#i\x01i\x01aN", b"HU\x0242"],
)  # fmt: skip
def test_every_kind_of_value_has_an_end(content: bytes, file: Path) -> None:
    """As ubjson.org has them; without the last byte none is whole."""
    file.write_bytes(content)
    check_whole(file)

    file.write_bytes(content[:-1] or b"?")
    with pytest.raises(ValueError, match="UBJSON"):
        check_whole(file)


def test_containers_without_end_are_refused(file: Path) -> None:
    """More of them than any model has."""
    file.write_bytes(b"[" * 100_000)

    with pytest.raises(ValueError, match="cut off or changed"):
        check_whole(file)
