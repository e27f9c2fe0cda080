"""The code of examples, without the servers and the load that their own tests need."""

import asyncio
import importlib.util
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import yaml

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"


def program(path: str) -> ModuleType:
    """A program of the examples as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_server_that_does_not_answer_costs_the_generator_no_more_than_what_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request beyond that is dropped and counted, so it is neither waited for nor sent late."""
    module = program("load.py")
    monkeypatch.setattr(module, "MAX_OPEN", 20)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        load = module.Load(url, rate=2000, lifetime=1.0, timeout=0.5, seed=7)

        report = load.report(await load.run(0.2, asyncio.Event()))

    assert report["requests"] + report["dropped"] == pytest.approx(400, abs=100)
    assert report["dropped"] > 200
    assert 0 == report["ok"] == load.open
    assert report["lost"] == report["broken"]["TimeoutError"] == report["requests"]


def test_the_ladder_climbs_from_one_user_to_a_thousand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """N07: the loads of a page that users know, each with the rate at which users are started."""
    ladder, climbed = program("loadtest/ladder.py"), []

    def climb(host: str, users: int, spawn_rate: int, seconds: int, _: str) -> dict[str, str]:
        climbed.append((host, users, spawn_rate, seconds))
        return dict.fromkeys(
            ("Request Count", "Failure Count", "Requests/s", "Median Response Time", "90%", "99%",
             "Max Response Time"), "1",
        )  # fmt: skip

    monkeypatch.setattr(ladder, "step", climb)
    monkeypatch.setattr(sys, "argv", ["ladder.py", "http://host", "--seconds", "7"])
    ladder.main()

    loads = [(1, 1), (50, 10), (200, 50), (300, 50), (400, 50), (1000, 100)]
    assert [("http://host", users, rate, 7) for users, rate in loads] == climbed
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert loads == [(int(row[0]), int(row[1])) for row in rows]


async def test_the_example_of_two_models_asks_both_before_either_has_answered() -> None:
    """N28: at once, not one after the other."""
    source, _ = yaml.safe_load_all((EXAMPLES / "06-two-models" / "batchedapi.yaml").read_text())
    names: dict[str, Any] = {}
    exec(source["data"]["model.py"], names)  # noqa: S102 - our own example
    asked: list[str] = []
    may_answer = asyncio.Event()

    async def submit(method: str, row: Any) -> Any:
        asked.append(method)
        await may_answer.wait()
        return getattr(predictor, method)(row)

    predictor = names["TwoModels"]({}, SimpleNamespace(submit=submit))
    answer = asyncio.create_task(predictor.predict({"features": [1, 2, 3, 4]}, {}, {}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert ["classify", "estimate"] == sorted(asked)
    may_answer.set()

    row = np.array([[1, 2, 3, 4]], dtype=np.float32)
    assert await answer == {
        "class": int(predictor.classify(row)[0].argmax()),
        "price": float(predictor.estimate(row)[0, 0]),
    }
