"""The meaning of a URI."""

from pathlib import Path

import pytest

from batchedapi_serving.model_source.__main__ import Here, Location, parse_location
from batchedapi_serving.model_source.bucket import Bucket
from batchedapi_serving.model_source.download import DownloadError, safe_path
from batchedapi_serving.model_source.https import HttpsFile
from batchedapi_serving.model_source.hub import HubModel
from batchedapi_serving.model_source.registry import RegistryModel

FOLDER = Path("/project")
DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("weights", Here(Path("/project/weights"))),
        ("/mnt/weights", Here(Path("/mnt/weights"))),
        ("file:///mnt/my%20weights", Here(Path("/mnt/my weights"))),
        ("file://localhost/mnt", Here(Path("/mnt"))),
        ("https://host/a/b.bin?x=1", HttpsFile("https://host/a/b.bin?x=1")),
        ("s3://bucket", Bucket("s3", "bucket", "")),
        ("s3://bucket/a/b/", Bucket("s3", "bucket", "a/b")),
        ("gs://bucket/a", Bucket("gs", "bucket", "a")),
        ("az://container/a", Bucket("az", "container", "a")),
        ("hf://org/name", HubModel("org/name", None, "")),
        ("hf://org/name@v1/", HubModel("org/name", "v1", "")),
        ("hf://org/name@refs%2Fpr%2F1/onnx/model.onnx",
         HubModel("org/name", "refs/pr/1", "onnx/model.onnx")),
        (f"oci://host:5000/a/b@sha256:{DIGEST}",
         RegistryModel(f"host:5000/a/b@sha256:{DIGEST}", "")),
        (f"oci://host/b@sha256:{DIGEST}/models/a/",
         RegistryModel(f"host/b@sha256:{DIGEST}", "models/a")),
    ],
)  # fmt: skip
def test_each_scheme_has_its_place(uri: str, location: Location) -> None:
    """A relative path is relative to the manifest's folder, like the code."""
    assert location == parse_location(uri, FOLDER)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://host/model", "use https"),
        ("ftp://host/model", "got the scheme 'ftp'"),
        ("hf://name", "expected hf://ORG/NAME@REVISION"),
        ("oci://host/name:tag", "expected oci://registry/name@sha256:DIGEST"),
        (f"oci://name@sha256:{DIGEST}", "expected oci://registry/name@sha256:DIGEST"),
        ("file://host/model", "expected file:///absolute/path"),
        ("https:///model", "expected https://host/path"),
        ("s3:///model", "expected s3://bucket/key"),
    ],
)
def test_what_cannot_be_fetched_says_what_can(uri: str, message: str) -> None:
    """In the words of the forms there are."""
    with pytest.raises(DownloadError, match=message):
        parse_location(uri, FOLDER)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/a/model.bin?token=/x", "model.bin"),
        ("https://host/", "model"),
        ("https://host", "model"),
        ("https://host/a%2F..", "model"),
        ("https://host/..%2F..%2Fetc%2Fpasswd", "passwd"),
    ],
)
def test_the_name_of_a_download_stays_in_its_folder(url: str, name: str) -> None:
    """A server chooses the path behind a redirect; it must not choose where a file goes."""
    assert name == HttpsFile(url).file_name


@pytest.mark.parametrize("path", ["a/../b", "../a", "/etc/passwd", "a//b", "a/./b", "a\0"])
def test_the_path_of_a_file_of_a_folder_stays_in_it(path: str) -> None:
    """A bucket, a repository or an artifact may have any name in it."""
    with pytest.raises(DownloadError, match=r"expected paths of files without '\.\.'"):
        safe_path(path)
