"""A model that a URI names is there before user code runs, or the start fails and says why."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from raw_http import ask
from serving import end_replica, running_replica, start_replica, write_manifest

CODE = """
    from pathlib import Path
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.path = context.model_path
            self.text = None if self.path is None else Path(self.path).read_text()

        @batched(example=0)
        def predict(self, items):
            return [[self.path, self.text]] * len(items)
"""


def manifest_with(folder: Path, model: dict[str, Any] | None) -> Path:
    """Two processes, so that both find it."""
    predictor = {"processesPerReplica": 2, **({} if model is None else {"model": model})}
    return write_manifest(folder, CODE, {"predictor": predictor})


async def test_a_file_is_used_in_place(tmp_path: Path) -> None:
    """C02: context.model_path is the file itself, with its digest checked."""
    weights = tmp_path / "weights.txt"
    weights.write_text("w")
    model = {"uri": f"file://{weights}", "sha256": hashlib.sha256(b"w").hexdigest()}
    with running_replica(tmp_path, ["-f", str(manifest_with(tmp_path, model))]) as replica:
        answer = (await ask(replica.port, 0)).json()

    assert [str(weights), "w"] == answer


async def test_without_a_model_there_is_no_path(tmp_path: Path) -> None:
    """Nothing is fetched."""
    with running_replica(tmp_path, ["-f", str(manifest_with(tmp_path, None))]) as replica:
        answer = (await ask(replica.port, 0)).json()

    assert [None, None] == answer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"uri": "file:///no/such/weights"}, "DownloadFailed: .*no file or folder"),
        ({"uri": "file:///etc/hostname", "sha256": "0" * 64}, "DigestMismatch: .*expected 000"),
        ({"uri": "https://localhost:1/w"}, "DownloadFailed: .*https://localhost:1/w"),
    ],
    ids=["missing", "digest", "refused"],
)
def test_a_model_that_is_not_there_fails_the_start(
    tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    """C05: with the reason for the ModelLoaded condition, before any user code runs."""
    replica = start_replica(tmp_path, ["-f", str(manifest_with(tmp_path, model))])

    code = replica.process.wait(60)
    end_replica(replica)

    last = replica.text().strip().splitlines()[-1]
    assert code == 1
    assert last.startswith("batchedapi: ")
    with pytest.raises(LookupError, match=message):
        raise LookupError(last)
    assert "model loaded" not in replica.text()


async def test_a_stop_while_a_model_is_being_fetched_ends_at_once(tmp_path: Path) -> None:
    """S14: the server does not answer, and is asked again after a wait."""
    manifest = manifest_with(tmp_path, {"uri": "https://localhost:1/weights"})
    replica = start_replica(tmp_path, ["-f", str(manifest)])
    try:
        replica.wait_for(lambda: "download failed" in replica.text(), "not asked yet")
        code = replica.stop(seconds=4)
    finally:
        end_replica(replica)

    assert code == 0
