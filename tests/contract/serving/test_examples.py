"""Every example, served from its own folder's file as the README says."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any, Final

import pytest

from raw_http import ask
from serving import running_replica

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"


async def test_iris_answers_probabilities(tmp_path: Path) -> None:
    """Code and weights come out of the ConfigMap in the same file."""
    file = EXAMPLES / "01-iris" / "batchedapi.yaml"
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        one = await ask(replica.port, [5.1, 3.5, 1.4, 0.2], "/iris")
        two = await ask(
            replica.port, {"instances": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]}, "/iris"
        )

    setosa, virginica = two.json()["predictions"]
    assert one.json() == setosa
    assert setosa[0] > 0.9
    assert virginica[2] > 0.9
    assert pytest.approx(1.0) == sum(setosa)


async def test_sleepy_answers_any_item_with_itself(tmp_path: Path) -> None:
    """Its cost matters, not its answer."""
    file = EXAMPLES / "02-sleepy" / "batchedapi.yaml"
    items: list[Any] = [{"id": 1, "nested": [None, {"a": "ü"}]}, "text", 3.5]
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        answers = [(await ask(replica.port, item, "/sleepy")).json() for item in items]

    assert items == answers


async def test_json_items_are_answered_one_by_one(tmp_path: Path) -> None:
    """D10: nested JSON in, the same with more in it out; a bad item fails alone."""
    file = EXAMPLES / "05-json-items" / "batchedapi.yaml"
    item = {"content": "string", "nested": {"key": "string", "values": [1, 5, 2]}}
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        good, bad = await asyncio.gather(
            ask(replica.port, item, "/items/test"), ask(replica.port, {"a": 1}, "/items/test")
        )

    answer = good.json()
    assert {"key": "string", "values": [1, 5, 2], "values_add1": [2, 6, 3]} == answer["data"].pop(
        "nested"
    )
    assert {"content": "string"} == answer["data"]
    assert 36 == len(answer["name"])
    assert 422 == bad.status
    assert 1900 < float(good.headers["x-batchedapi-queue-ms"]) < 5000


async def test_two_models_are_asked_at_once_and_batched_apart(tmp_path: Path) -> None:
    """N28: what `predict` submits rides with what others ask of the same method."""
    file = EXAMPLES / "06-two-models" / "batchedapi.yaml"
    row = [5.1, 3.5, 1.4, 0.2]
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        composed = await asyncio.gather(
            *(ask(replica.port, {"features": row}, "/two-models") for _ in range(20))
        )
        classes = await ask(replica.port, row, "/two-models/classify")
        price = await ask(replica.port, row, "/two-models/estimate")

    probabilities = classes.json()
    expected = {"class": probabilities.index(max(probabilities)), "price": price.json()[0]}
    assert [200] * 20 == [answer.status for answer in composed]
    assert all(
        answer.json()["class"] == expected["class"]
        and answer.json()["price"] == pytest.approx(expected["price"], rel=1e-5)
        for answer in composed
    )


def test_the_manifest_of_iris_is_what_its_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real data, fitted anew: neither the weights nor the copied code were edited by hand."""
    spec = importlib.util.spec_from_file_location("train", EXAMPLES / "01-iris" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    (tmp_path / "model.py").write_text((train.FOLDER / "model.py").read_text())
    committed = {
        name: (train.FOLDER / name).read_text() for name in ("weights.json", "batchedapi.yaml")
    }

    monkeypatch.setattr(train, "FOLDER", tmp_path)
    train.main()

    assert committed == {name: (tmp_path / name).read_text() for name in committed}
