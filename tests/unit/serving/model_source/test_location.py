"""The meaning of a URI."""

from pathlib import Path

import pytest

from batchedapi_serving.model_source.__main__ import Here, Location, parse_location
from batchedapi_serving.model_source.download import Bucket, DownloadFailedError, HttpsFile

FOLDER = Path("/project")


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("weights", Here(Path("/project/weights"))),
        ("/mnt/weights", Here(Path("/mnt/weights"))),
        ("file:///mnt/my%20weights", Here(Path("/mnt/my weights"))),
        ("file://localhost/mnt", Here(Path("/mnt"))),
        ("https://host/a/b.bin?x=1", HttpsFile("https://host/a/b.bin?x=1")),
        ("s3://bucket", Bucket("bucket", "")),
        ("s3://bucket/a/b/", Bucket("bucket", "a/b")),
    ],
)
def test_each_scheme_has_its_place(uri: str, location: Location) -> None:
    """A relative path is relative to the manifest's folder, like the code."""
    assert location == parse_location(uri, FOLDER)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://host/model", "use https"),
        ("gs://bucket/model", "got the scheme 'gs'"),
        ("file://host/model", "expected file:///absolute/path"),
        ("https:///model", "expected a host"),
        ("s3:///model", "expected s3://bucket/key"),
    ],
)
def test_what_cannot_be_fetched_says_what_can(uri: str, message: str) -> None:
    """The reason is the word of the ModelLoaded condition."""
    with pytest.raises(DownloadFailedError, match=message) as raised:
        parse_location(uri, FOLDER)

    assert raised.value.reason == "DownloadFailed"
    assert uri in str(raised.value)


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
