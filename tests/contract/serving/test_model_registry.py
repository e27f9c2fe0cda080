"""Models of a registry of images: a real one, with what oras and docker push to it."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.model_source.__main__ import fetch_model
from image_registry import ImageRegistry, credentials, digest_of, running_registry, tar_of

MANY = bytes(range(256)) * (1 << 10)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    """A registry that anybody may read."""
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def fetched(reference: str, folder: Path, cache: Path | None = None) -> Path:
    """Without waiting between tries."""
    return fetch_model(
        f"oci://{reference}", None,
        here=folder, folder=folder / "model", cache=cache, sleep=lambda _: None,
    )  # fmt: skip


def failure(reference: str, folder: Path) -> str:
    """What a fetch says that fails, which leaves nothing."""
    with pytest.raises(LoadError) as raised:
        fetched(reference, folder)
    left = folder / "model"
    assert not left.exists() or {".lock"} == {one.suffix for one in left.iterdir()}
    return str(raised.value)


def files_in(folder: Path) -> dict[str, bytes]:
    """By path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_an_artifact_is_a_folder_of_its_files(registry: ImageRegistry, tmp_path: Path) -> None:
    """Layers have the names of files, as `oras push` makes them."""
    files = {"model.onnx": MANY, "more/labels.txt": b"a\nb"}

    path = fetched(registry.push_files("models/digits", files), tmp_path)

    assert "digits" == path.name
    assert files == files_in(path)


def test_an_image_is_the_folder_that_a_container_would_see(
    registry: ImageRegistry, tmp_path: Path
) -> None:
    """A later layer beats an earlier one, and takes away what it marks so."""
    layers = [
        tar_of({"models/a": b"1", "models/b": b"1", "old/x": b"", "c/./d": b"1"}),
        tar_of({"models/a": b"2", "models/.wh.b": b"", ".wh.old": b""}, {"models/l": "a"}),
    ]

    path = fetched(registry.push_image("digits", layers), tmp_path)

    assert {"models/a": b"2", "models/l": b"2", "c/d": b"1"} == files_in(path)


def test_a_path_of_an_artifact_or_an_image_is_a_file_or_a_folder(
    registry: ImageRegistry, tmp_path: Path
) -> None:
    """Of an artifact nothing else is fetched."""
    files = {"models/a.onnx": b"1", "models/a.onnx.txt": b"2", "b": b"3"}
    artifact = registry.push_files("paths", files)
    image = registry.push_image("paths", [tar_of(files)])

    for reference in (artifact, image):
        file = fetched(f"{reference}/models/a.onnx", tmp_path)
        folder = fetched(f"{reference}/models", tmp_path)
        assert ("a.onnx", b"1") == (file.name, file.read_bytes())
        assert {"a.onnx": b"1", "a.onnx.txt": b"2"} == files_in(folder)
        assert "has no file models/c" in failure(f"{reference}/models/c", tmp_path / "c")


def test_of_several_architectures_that_of_the_machine_is_taken(
    registry: ImageRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of an image that buildx made is that of an index."""
    images = {
        name: registry.push_image("digits", [tar_of({"is": name.encode()})])
        for name in ("amd64", "arm64")
    }
    index = registry.push_index("digits", images)

    for machine, architecture in (("x86_64", b"amd64"), ("aarch64", b"arm64")):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert {"is": architecture} == files_in(fetched(index, tmp_path / machine))
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    assert "nothing for the architecture s390x" in failure(index, tmp_path)


def test_a_model_that_is_cached_asks_nobody(registry: ImageRegistry, tmp_path: Path) -> None:
    """Its digest names it for ever."""
    reference = registry.push_files("digits", {"a": b"once"})
    path = fetched(reference, tmp_path, tmp_path / "cache")
    registry.blob_path(reference.rpartition("@")[2]).unlink()

    assert path == fetched(reference, tmp_path, tmp_path / "cache")


def test_a_private_registry_is_read_with_dockers_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file that `docker login` writes, and a Secret of Kubernetes has."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "registry").mkdir()
    with running_registry(tmp_path / "registry", private=True) as registry:
        reference = registry.push_files("digits", {"a": b"secret"})

        refused = failure(reference, tmp_path)
        config = {"auths": {registry.address: {"auth": credentials()}}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        path = fetched(reference, tmp_path)

    assert "expected 200, got 401" in refused
    assert "set DOCKER_CONFIG" in refused
    assert {"a": b"secret"} == files_in(path)


def test_what_is_not_there_is_told(registry: ImageRegistry, tmp_path: Path) -> None:
    """At once."""
    reference = f"{registry.address}/digits@{digest_of(b'nothing')}"

    assert "expected 200, got 404" in failure(reference, tmp_path)


def test_a_registry_that_is_not_there_is_told_after_the_last_try(tmp_path: Path) -> None:
    """It may be back."""
    assert "5 times" in failure(f"127.0.0.1:1/digits@{digest_of(b'')}", tmp_path)


@pytest.mark.parametrize(
    ("what", "message"),
    [("manifest", "manifest sha256:[0-9a-f]* has another digest"), ("layer", "its source says")],
)
def test_what_has_another_digest_is_not_loaded(
    registry: ImageRegistry, tmp_path: Path, what: str, message: str
) -> None:
    """Whoever can write to the registry's disk could give any model."""
    reference = registry.push_files(f"damaged-{what}", {"one": f"one {what}".encode()})
    (layer,) = registry.layers_of(reference)
    path = registry.blob_path(reference.rpartition("@")[2] if what == "manifest" else layer)
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))

    with pytest.raises(LookupError, match=message):
        raise LookupError(failure(reference, tmp_path))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (tar_of({"../x": b"x"}), "without '..', got '../x'"),
        (tar_of({"../.wh.x": b""}), "without '..', got '../.wh.x'"),
        (b"\x28\xb5\x2f\xfd" + MANY, "expected layers that are tar, or tar packed by gzip"),
        (tar_of({"a": MANY})[:200], "expected layers that are tar, or tar packed by gzip"),
    ],
    ids=["out", "out-whiteout", "zstd", "truncated"],
)
def test_a_layer_that_is_no_model_is_refused(
    registry: ImageRegistry, tmp_path: Path, layer: bytes, message: str
) -> None:
    """With what was expected."""
    assert message in failure(registry.push_image("odd", [layer]), tmp_path)
    assert not (tmp_path / "x").exists()


def test_an_artifact_whose_file_leads_out_is_refused(
    registry: ImageRegistry, tmp_path: Path
) -> None:
    """Its title is whatever its author wrote."""
    reference = registry.push_files("odd", {"../../x": b"x"})

    assert "without '..', got 'odd/../../x'" in failure(reference, tmp_path)


def test_links_out_of_an_image_are_left_out(registry: ImageRegistry, tmp_path: Path) -> None:
    """They mean files of the image's own root, of which there is none here."""
    reference = registry.push_image("odd", [tar_of({"a": b"1"}, {"bin/sh": "/bin/busybox"})])

    path = fetched(reference, tmp_path)

    assert {"a": b"1"} == files_in(path)
    assert not (path / "bin" / "sh").is_symlink()


def test_a_disk_that_is_full_while_layers_are_unpacked_is_left_empty(
    registry: ImageRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image takes twice its size meanwhile, and others need the disk too."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reference = registry.push_image("large", [tar_of({"a": MANY})])
    monkeypatch.setattr("tarfile.TarFile.extract", full)

    assert "is full (No space left on device)" in failure(reference, tmp_path)


def test_without_the_client_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extra of its own."""
    monkeypatch.setitem(sys.modules, "oras.container", None)

    assert "pip install 'batchedapi[oci]'" in failure(f"a/b@{digest_of(b'')}", tmp_path)
