"""Models of the Hugging Face Hub, by its own client, from a server that speaks its API."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.model_source.__main__ import WAITS, fetch_model
from model_hub import COMMIT, SMALL, TOKEN, Hub, running_hub

BODY = bytes(range(256)) * 64
FILES = {"config.json": b"{}", "empty": b"", "onnx/model.onnx": BODY, "onnx/model.onnx.txt": b"no"}
assert len(BODY) > SMALL


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with FILES, that we may read."""
    with running_hub() as hub:
        hub.files = dict(FILES)
        monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        yield hub


def fetched(uri: str, folder: Path, cache: Path | None = None) -> Path:
    """Without waiting between tries."""
    return fetch_model(
        uri, None, here=folder, folder=folder / "model", cache=cache, sleep=lambda _: None
    )


def failure(uri: str, folder: Path) -> str:
    """What a fetch says that fails."""
    with pytest.raises(LoadError) as raised:
        fetched(uri, folder)
    return str(raised.value)


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_repository_is_a_folder(hub: Hub, tmp_path: Path, revision: str) -> None:
    """The token goes to the Hub, and not to the storage that it sends readers to."""
    path = fetched(f"hf://acme/digits{revision}", tmp_path)

    found = {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    assert FILES == found
    assert "/storage/onnx/model.onnx" in hub.asked
    assert hub.leaked == []


def test_a_path_of_a_repository_is_a_file_or_a_folder(hub: Hub, tmp_path: Path) -> None:
    """Repositories have the same weights in many formats."""
    file = fetched("hf://acme/digits@main/onnx/model.onnx", tmp_path)
    asked = [path for path in hub.asked if "config" in path]
    folder = fetched("hf://acme/digits/onnx", tmp_path)

    assert ("model.onnx", BODY, []) == (file.name, file.read_bytes(), asked)
    assert {"model.onnx", "model.onnx.txt"} == {one.name for one in folder.iterdir()}


def test_a_commit_that_is_cached_asks_nobody(hub: Hub, tmp_path: Path) -> None:
    """What it names never changes; a branch is asked for its commit."""
    cache = tmp_path / "cache"
    first = fetched("hf://acme/digits@main", tmp_path, cache)
    pinned = fetched(f"hf://acme/digits@{COMMIT}", tmp_path, cache)
    hub.asked.clear()

    assert pinned == fetched(f"hf://acme/digits@{COMMIT}", tmp_path, cache)
    assert hub.asked == []
    assert first == fetched("hf://acme/digits@main", tmp_path, cache)
    assert ["/api/models/acme/digits/revision/main", f"/api/models/acme/digits/tree/{COMMIT}"] == (
        hub.asked
    )


def test_a_hub_that_is_unwell_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    """As every source."""
    hub.unwell = 2

    assert fetched(f"hf://acme/digits@{COMMIT}/config.json", tmp_path).read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://acme/other", "Repository Not Found .*set HF_TOKEN from a Secret"),
        ("hf://acme/digits@nope", "Revision Not Found"),
        ("hf://acme/digits/nope", "has no file nope"),
        ("hf://acme/-digits", "Repo id must use alphanumeric chars"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_is_not_there_is_told_at_once(tmp_path: Path, uri: str, message: str) -> None:
    """In the words of the Hub."""
    with pytest.raises(LookupError, match=message):
        raise LookupError(failure(uri, tmp_path))


def test_who_may_not_read_is_told_how(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gated, or without a token: asked once."""
    hub.gated = True
    assert "Cannot access gated repo" in failure("hf://acme/digits", tmp_path)

    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN from a Secret" in failure("hf://acme/digits", tmp_path)
    assert len(hub.asked) == 2


@pytest.mark.parametrize("path", ["config.json", "onnx/model.onnx"])
def test_a_file_that_is_not_what_the_hub_says_is_not_loaded(
    hub: Hub, tmp_path: Path, path: str
) -> None:
    """Large files have a SHA-256, others the name that git gives them."""
    hub.damaged = True

    said = failure(f"hf://acme/digits@main/{path}", tmp_path)

    assert "its source says" in said
    assert [".lock"] == [one.suffix for one in (tmp_path / "model").iterdir()]


def test_a_hub_that_is_not_there_is_told_after_the_last_try(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of anybody else."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")

    assert f"{len(WAITS) + 1} times" in failure("hf://acme/digits", tmp_path)
    assert hub.asked == []


def test_a_path_that_leads_out_is_refused(hub: Hub, tmp_path: Path) -> None:
    """Git has no such names, and a server may say anything."""
    hub.files = {"../x": b"x"}

    assert "without '..', got 'digits/../x'" in failure("hf://acme/digits", tmp_path)


def test_without_the_client_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extra of its own."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    assert "pip install 'batchedapi[hf]'" in failure("hf://acme/digits", tmp_path)
