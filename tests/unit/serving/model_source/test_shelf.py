"""Models that replicas share: each whole, each fetched once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchedapi_serving.model_source.download import CONTENT
from batchedapi_serving.model_source.shelf import entry_of, kept


def filled(staging: Path) -> None:
    """A model of one file."""
    (staging / CONTENT).mkdir(exist_ok=True)
    (staging / CONTENT / "model").write_text("whole")


def test_who_comes_meanwhile_waits_and_fetches_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three replicas of a node start at once."""
    caplog.set_level("INFO")
    entry, fills = entry_of(tmp_path, "s3://a", "1"), []
    others = threading.Event()

    def fill(staging: Path) -> None:
        fills.append(staging)
        others.wait(10)
        filled(staging)

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(kept, entry, fill) for _ in range(3)]
        while caplog.text.count("another replica fetches") < 2:
            pass
        others.set()
        paths = {one.result() for one in found}

    assert {entry / "model"} == paths
    assert len(fills) == 1


def test_what_was_begun_is_not_a_model(tmp_path: Path) -> None:
    """Whoever fetches may be killed at any time: the next goes on in the same staging folder."""
    entry = entry_of(tmp_path, "s3://a", "1")

    def cut(staging: Path) -> None:
        (staging / "half").touch()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        kept(entry, cut)
    assert not entry.exists()
    seen: list[bool] = []

    def fill(staging: Path) -> None:
        seen.append((staging / "half").exists())
        (staging / CONTENT).mkdir()
        (staging / CONTENT / "model").mkdir()
        (staging / CONTENT / "model" / "link").symlink_to("nowhere")

    path = kept(entry, fill)

    assert [True] == seen
    assert path.is_dir()
    assert {entry.name, f"{entry.name}.lock"} == {one.name for one in tmp_path.iterdir()}


def test_another_version_has_another_place(tmp_path: Path) -> None:
    """Replicas of the last revision may still read theirs."""
    places = {entry_of(tmp_path, *of) for of in (("a", "1"), ("a", "2"), ("b", "1"))}

    assert len(places) == 3


def test_a_model_that_is_used_is_younger_than_one_that_is_not(tmp_path: Path) -> None:
    """By which somebody may tidy up."""
    entry = entry_of(tmp_path, "s3://a", "1")
    kept(entry, filled)
    os.utime(entry, (1, 1))

    kept(entry, filled)

    assert entry.stat().st_mtime > 1
