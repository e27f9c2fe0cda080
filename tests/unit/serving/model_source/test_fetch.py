"""Fetching, from real servers on loopback."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.model_source import bucket, download
from batchedapi_serving.model_source.__main__ import WAITS, fetch_model
from batchedapi_serving.model_source.download import DownloadError, TransientError
from batchedapi_serving.model_source.https import read_range
from certificates import Certificates
from cut_connections import way_to
from object_store import running_store

BODY = bytes(range(256)) * 8192  # 2 MiB: more than one read


class Server(Protocol):
    """The https server of conftest.py."""

    port: int
    answers: dict[str, list[tuple[int, dict[str, str], bytes]]]
    files: dict[str, list[bytes]]
    asked: list[str]


class Fetched(NamedTuple):
    """The result of a fetch."""

    path: Path
    waits: list[float]


def fetched(
    uri: str, folder: Path, sha256: str | None = None, cache: Path | None = None
) -> Fetched:
    """Without waiting between tries."""
    waits: list[float] = []
    path = fetch_model(
        uri, sha256, here=folder, folder=folder / "model", cache=cache, sleep=waits.append
    )
    return Fetched(path, waits)


def failure(uri: str, folder: Path, sha256: str | None = None) -> LoadError:
    """The error of a fetch that fails."""
    with pytest.raises(LoadError) as raised:
        fetched(uri, folder, sha256)
    return raised.value


def test_what_is_here_is_used_in_place(tmp_path: Path) -> None:
    """A mounted volume is not copied."""
    (tmp_path / "weights").mkdir()

    assert tmp_path / "weights" == fetched("weights", tmp_path).path
    assert tmp_path / "weights" == fetched(f"file://{tmp_path}/weights", tmp_path).path
    assert not (tmp_path / "model").exists()


def test_what_is_not_here_is_named(tmp_path: Path) -> None:
    """With the path that was looked at, not the one that was written."""
    error = failure("missing", tmp_path)

    assert error.reason == "DownloadFailed"
    assert f"there is no file or folder {tmp_path}/missing" in str(error)


def test_a_file_comes_over_https(https: Server, tmp_path: Path) -> None:
    """Whole, under its own name, with its digest checked."""
    https.answers["/a/model.bin"] = [(200, {}, BODY)]

    uri, digest = f"https://localhost:{https.port}/a/model.bin", hashlib.sha256(BODY).hexdigest()
    path = fetched(uri, tmp_path, digest).path

    assert path.name == "model.bin"
    assert path.read_bytes() == BODY


def test_a_digest_that_differs_fails_the_start(https: Server, tmp_path: Path) -> None:
    """Once: the same file would come again."""
    https.answers["/model.bin"] = [(200, {}, b"other")]

    error = failure(f"https://localhost:{https.port}/model.bin", tmp_path, "0" * 64)

    assert ("DigestMismatch", 1) == (error.reason, len(https.asked))


def test_a_server_that_is_unwell_is_asked_again(https: Server, tmp_path: Path) -> None:
    """Waiting longer each time; a torn download counts as unwell."""
    torn = (200, {"content-length": "100"}, b"half")
    https.answers["/m"] = [(503, {}, b""), (429, {}, b""), torn, (200, {}, b"all")]

    path, waits = fetched(f"https://localhost:{https.port}/m", tmp_path)

    assert path.read_bytes() == b"all"
    assert list(WAITS[:3]) == waits  # nothing of a torn answer helps where there are no ranges


def test_after_the_last_try_the_last_reason_is_told(https: Server, tmp_path: Path) -> None:
    """A pod that is started again tries again."""
    https.answers["/m"] = [(500, {}, b"")]

    error = failure(f"https://localhost:{https.port}/m", tmp_path)

    assert ("DownloadFailed", len(WAITS) + 1) == (error.reason, len(https.asked))
    assert "500" in str(error)
    assert "5 times" in str(error)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_final(https: Server, tmp_path: Path, status: int) -> None:
    """Asking again does not change it."""
    https.answers["/m"] = [(status, {}, b"")]

    error = failure(f"https://localhost:{https.port}/m", tmp_path)

    assert f"expected 200, got {status}" in str(error)
    assert len(https.asked) == 1


def test_redirects_lead_to_https_only(https: Server, tmp_path: Path) -> None:
    """Storage services redirect to another host; one to http could be changed on the way."""
    base = f"https://localhost:{https.port}"
    https.answers["/good"] = [(302, {"location": f"{base}/there"}, b"")]
    https.answers["/there"] = [(200, {}, b"it")]
    https.answers["/bad"] = [(302, {"location": f"http://localhost:{https.port}/there"}, b"")]

    assert fetched(f"{base}/good", tmp_path).path.read_bytes() == b"it"
    assert "was sent on to http://" in str(failure(f"{base}/bad", tmp_path))


def test_a_caller_says_which_refusals_pass(https: Server) -> None:
    """A token may expire between two pieces; the number in another error's text means nothing."""
    base, passing = f"https://localhost:{https.port}", {401}
    https.answers["/expired"] = [(401, {}, b"")]
    https.answers["/bad"] = [(302, {"location": "http://localhost/401"}, b"")]

    with pytest.raises(TransientError, match="401"):
        list(read_range(f"{base}/expired", {}, 0, None, passing))
    with pytest.raises(DownloadError, match="was sent on to http://localhost/401"):
        list(read_range(f"{base}/bad", {}, 0, None, passing))


def test_an_unknown_certificate_is_refused_with_the_remedy(
    https: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and without a byte of the model."""
    monkeypatch.delenv("SSL_CERT_FILE")

    error = failure(f"https://localhost:{https.port}/m", tmp_path)

    assert "certificate does not verify" in str(error)
    assert "SSL_CERT_FILE" in str(error)
    assert https.asked == []


def test_a_model_larger_than_the_disk_is_refused_before_it_fills_it(
    https: Server, tmp_path: Path
) -> None:
    """S25: the node's disk is shared with other pods."""
    size = shutil.disk_usage(tmp_path).free - download.SPARE // 2
    https.answers["/m"] = [(200, {"content-length": str(size)}, b"")]

    error = failure(f"https://localhost:{https.port}/m", tmp_path)

    assert f"expected room for {size} bytes" in str(error)
    assert "ephemeral storage" in str(error)


def test_an_object_comes_from_a_bucket(s3: dict[str, bytes], tmp_path: Path) -> None:
    """A key that is an object is a file, also when others begin with its name."""
    s3 |= {"v1/model.bin": BODY, "v1/model.bin.txt": b"no"}

    path = fetched("s3://models/v1/model.bin", tmp_path, hashlib.sha256(BODY).hexdigest()).path

    assert path.name == "model.bin"
    assert path.read_bytes() == BODY
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("uri", ["s3://models/v1", "s3://models/v1/"])
def test_a_prefix_of_a_bucket_is_a_folder(s3: dict[str, bytes], tmp_path: Path, uri: str) -> None:
    """With everything below it, at its place, and nothing beside it."""
    s3 |= {"v1/a.bin": b"a", "v1/sub/b.bin": b"b", "v10/c.bin": b"c"}

    path = fetched(uri, tmp_path).path

    files = {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    assert {"a.bin": b"a", "sub/b.bin": b"b"} == files


def test_a_bucket_without_such_a_key_says_so(s3: dict[str, bytes], tmp_path: Path) -> None:
    """Not an empty folder, which the predictor would stumble over."""
    s3["other"] = b""

    assert "no such object, and none below it" in str(failure("s3://models/v1", tmp_path))


@pytest.mark.parametrize("missing", sorted(chain.from_iterable(bucket.PAIRS)))
def test_half_a_credential_is_named(
    s3: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """A Secret with one key of two, a role without a token: nothing is asked of anybody."""
    s3["model"] = BODY
    (pair,) = (pair for pair in bucket.PAIRS if missing in pair)
    (there,) = set(pair) - {missing}
    monkeypatch.setenv(there, "it")
    monkeypatch.delenv(missing, raising=False)

    error = failure("s3://models/model", tmp_path)

    assert f"expected {missing} beside {there} in the environment" in str(error)


def test_a_refusal_of_the_store_is_final(
    s3: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store checks what is signed, and asking again does not change it."""
    s3["v1/model"] = BODY
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")

    error = failure("s3://models/v1", tmp_path)

    assert "403" in str(error)
    assert "times" not in str(error)


@pytest.mark.usefixtures("s3")
def test_a_store_of_an_unknown_authority_is_refused_with_the_remedy(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over https: at once, and trusted as soon as the authority is named."""
    with running_store(certificates.server) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        store.objects["model"] = BODY

        error = failure("s3://models/model", tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        path = fetched("s3://models/model", tmp_path).path

    assert "certificate does not verify" in str(error)
    assert "SSL_CERT_FILE" in str(error)
    assert path.read_bytes() == BODY


def test_where_there_are_no_credentials_the_remedy_is_named() -> None:
    """Without any, obstore asks the instance, whose address tells a reader nothing."""
    said = Exception("Error performing PUT\n http://169.254.169.254/latest\n\nDebug source:\nx")

    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in bucket.failure_of(said, {})
    assert "Error performing PUT http://169.254.169.254/latest" == bucket.failure_of(
        said, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"}
    )


def test_nothing_of_a_torn_download_stays(https: Server, tmp_path: Path) -> None:
    """The next try begins with an empty folder."""
    answers: Sequence[Any] = [(200, {"content-length": "9"}, b"half"), (200, {}, b"whole")]
    https.answers["/m"] = list(answers)

    path = fetched(f"https://localhost:{https.port}/m", tmp_path).path

    assert [path] == list(path.parent.iterdir())
    assert path.read_bytes() == b"whole"


def test_a_file_comes_in_pieces_where_the_server_gives_them(
    https: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection for each, several at once; the first answer said that it may be so."""
    monkeypatch.setattr(download, "PIECE", 1 << 19)
    https.files["/m"] = [BODY]

    path = fetched(f"https://localhost:{https.port}/m", tmp_path).path

    assert path.read_bytes() == BODY
    assert len(https.asked) == 1 + 4


def test_a_file_that_changes_meanwhile_is_fetched_anew(
    https: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one and half of another would be no model."""
    monkeypatch.setattr(download, "PIECE", 1 << 19)
    monkeypatch.setattr(download, "CONNECTIONS", 1)
    https.files["/m"] = [BODY, BODY, BODY[::-1]]

    path, waits = fetched(f"https://localhost:{https.port}/m", tmp_path)

    assert path.read_bytes() == BODY[::-1]
    assert len(waits) == 1


def test_a_weak_tag_names_no_content(https: Server, tmp_path: Path) -> None:
    """RFC 9110: ranges of it need not fit together; it comes in one go, and is kept nowhere."""
    about = {"etag": 'W/"1"', "accept-ranges": "bytes"}
    https.answers["/m"] = [(200, about, BODY)]

    path = fetched(f"https://localhost:{https.port}/m", tmp_path, cache=tmp_path / "cache").path

    assert path.read_bytes() == BODY
    assert not (tmp_path / "cache").exists()


def test_a_cut_costs_what_was_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice in the middle: all else is not fetched again, and no wait grows by it."""
    body = bytes(range(256)) * (1 << 17)  # 32 MiB
    with running_store() as store, way_to(store.url, 8 << 20, 8 << 20) as way:
        store.public, store.objects["big"] = True, body
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setattr(bucket, "RETRIES", 0)

        path, waits = fetched("s3://models/big", tmp_path)

    assert path.read_bytes() == body
    assert [WAITS[0]] * 2 == waits
    assert way.sent < len(body) * 1.3


def test_a_digest_that_differs_leaves_nothing(https: Server, tmp_path: Path) -> None:
    """Neither in the cache nor half of it beside."""
    https.files["/m"] = [BODY]
    cache = tmp_path / "cache"

    with pytest.raises(LoadError, match="has " + hashlib.sha256(BODY).hexdigest()):
        fetched(f"https://localhost:{https.port}/m", tmp_path, "0" * 64, cache)

    assert [".lock"] == [path.suffix for path in cache.iterdir()]


def test_a_cached_model_is_fetched_again_when_it_changes(https: Server, tmp_path: Path) -> None:
    """A URL without a digest is asked for its version at each start."""
    uri, cache = f"https://localhost:{https.port}/m", tmp_path / "cache"
    https.files["/m"] = [BODY]

    first = fetched(uri, tmp_path, cache=cache).path
    again = fetched(uri, tmp_path, cache=cache).path
    asked = len(https.asked)
    https.files["/m"] = [BODY[::-1]]
    changed = fetched(uri, tmp_path, cache=cache).path

    assert first == again
    assert asked == 3  # version and content, version
    assert BODY[::-1] == changed.read_bytes() != first.read_bytes()


def test_a_pinned_model_in_the_cache_asks_nobody(https: Server, tmp_path: Path) -> None:
    """Replicas start while its source is down; what others did to it is noticed."""
    uri, cache = f"https://localhost:{https.port}/m", tmp_path / "cache"
    https.files["/m"] = [BODY]
    digest = hashlib.sha256(BODY).hexdigest()
    path = fetched(uri, tmp_path, digest, cache).path
    del https.files["/m"]

    os.utime(path.parent, (1, 1))
    assert path == fetched(uri, tmp_path, digest, cache).path
    assert path.parent.stat().st_mtime > 1  # its last use: others are removed by it
    path.write_bytes(b"damaged")
    with pytest.raises(LoadError, match="expected " + digest):
        fetched(uri, tmp_path, digest, cache)


def test_a_path_of_a_bucket_that_leads_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes to the bucket must not write beside the model."""
    found = {"path": "v1/../../x", "size": 1, "e_tag": "1"}
    monkeypatch.setattr(bucket, "_objects", lambda *_: [found])
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")

    assert "without '..', got 'v1/../../x'" in str(failure("s3://models/v1", tmp_path))


def test_marks_of_folders_are_no_files(s3: dict[str, bytes], tmp_path: Path) -> None:
    """Consoles make an empty object for a folder."""
    s3 |= {"v1/sub": b"", "v1/sub/a.bin": b"a"}

    path = fetched("s3://models/v1", tmp_path).path

    assert [path / "sub" / "a.bin"] == [file for file in path.rglob("*") if file.is_file()]


def test_a_bucket_of_google_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same API; who asks is said by GOOGLE_* variables."""
    with running_store() as store:
        store.public, store.objects["v1/a"] = True, BODY
        account = {"gcs_base_url": store.url, "disable_oauth": True, "client_email": "",
                   "private_key": "", "private_key_id": ""}  # fmt: skip
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))

        path = fetched("gs://models/v1/a", tmp_path).path

    assert path.read_bytes() == BODY


def test_a_container_of_azure_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is asked for as S3's are; who asks is said by AZURE_* variables."""
    with running_store() as store:
        store.public, store.objects["v1/a"] = True, BODY
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": "acme",
            "AZURE_STORAGE_ENDPOINT": store.url,
            "AZURE_SKIP_SIGNATURE": "true",
            "AZURE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)

        path = fetched("az://models/v1/a", tmp_path).path

    assert path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.ENOSPC, download.DownloadError, "is full .* set TMPDIR"),
        (errno.EDQUOT, download.DownloadError, "is full .* set TMPDIR"),
        (errno.EROFS, download.DownloadError, "cannot be written to .*fsGroup"),
        (errno.EIO, download.TransientError, "OSError: "),
    ],
)
def test_what_the_disk_says_is_told_with_the_remedy(
    tmp_path: Path, number: int, error: type[Exception], message: str
) -> None:
    """The kubelet's disk fills up for others, too."""
    with pytest.raises(error, match=message), download.disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))
