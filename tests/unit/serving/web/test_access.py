"""Keys as they are read and compared, and what is logged of whom."""

import hashlib
import hmac
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError, UnauthenticatedError
from batchedapi_serving.web import access
from batchedapi_serving.web.access import RENEWED_SECONDS, ApiKeys, Cors, read_keys


def keys_in(folder: Path, **files: str) -> Path:
    """A folder as a mounted Secret is: with a link to a folder that begins with a dot."""
    (folder / "..data").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def admits(keys: ApiKeys, *headers: tuple[bytes, bytes]) -> bool:
    """Whether a request with these headers is answered."""
    try:
        keys.check(headers)
    except UnauthenticatedError:
        return False
    return True


def test_each_file_is_a_key_without_the_end_of_its_line(tmp_path: Path) -> None:
    """An editor ends a file with a line feed, which no header can have."""
    found = read_keys(keys_in(tmp_path, a="one\n", b="two"))

    assert tuple(hashlib.sha256(key).digest() for key in (b"one", b"two")) == found


def test_all_keys_are_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is right, none, the first or the last: the work is the same."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return hmac.compare_digest(a, b)

    class Counted:
        compare_digest = staticmethod(compare)

    keys = ApiKeys(keys_in(tmp_path, a="one", b="two", c="three"))
    monkeypatch.setattr(access, "hmac", Counted)

    for key in (b"one", b"three", b"x", b"x" * 1000):
        admits(keys, (b"x-api-key", key))

    assert [(32, 32)] * 12 == compared


def test_either_header_may_bring_it(tmp_path: Path) -> None:
    """A gateway may put its own Authorization in front of the client's key."""
    keys = ApiKeys(keys_in(tmp_path, a="one"))

    assert admits(keys, (b"authorization", b"Basic abc"), (b"x-api-key", b"one"))
    assert admits(keys, (b"authorization", b"BEARER one"), (b"x-api-key", b"no"))
    assert not admits(keys, (b"authorization", b"Basic one"))
    assert not admits(keys)


def test_keys_are_read_again_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    """What is wrong in a Secret must neither open the API nor close it."""
    keys = ApiKeys(keys_in(tmp_path, a="one"))
    keys_in(tmp_path, b="two")
    keys.renew(0.5 * RENEWED_SECONDS)
    early = admits(keys, (b"x-api-key", b"two"))
    keys.renew(1.5 * RENEWED_SECONDS)
    renewed = admits(keys, (b"x-api-key", b"two"))
    for file in ("a", "b"):
        (tmp_path / file).unlink()
    keys.renew(3 * RENEWED_SECONDS)

    assert (False, True) == (early, renewed)
    assert admits(keys, (b"x-api-key", b"two"))


@pytest.mark.parametrize("text", ["", " ", "a b", "\u00e9", "a\nb"])
def test_what_cannot_be_a_key_is_refused_without_being_told(tmp_path: Path, text: str) -> None:
    """A file of two lines is a mistake, and its text a secret."""
    with pytest.raises(LoadError, match="file mine: expected one key") as raised:
        read_keys(keys_in(tmp_path, mine=text))

    assert "a b" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "path", "is_open"),
    [
        (b"GET", b"/v2/health/ready", True),
        (b"HEAD", b"/docs", True),
        (b"POST", b"/v2/health/ready", False),
        (b"GET", b"/v2/models/api", False),
        (b"GET", b"/%64ocs", False),
    ],
)
def test_only_reading_health_and_the_documentation_is_open(
    tmp_path: Path, method: bytes, path: bytes, *, is_open: bool
) -> None:
    """An endpoint may be called like one of them, and predictions are POSTs."""
    keys = ApiKeys(keys_in(tmp_path, a="one"))
    if is_open:
        keys.check_request(method, path, ())
    else:
        with pytest.raises(UnauthenticatedError):
            keys.check_request(method, path, ())


def test_any_origin_is_answered_with_a_star_and_a_list_with_the_one_that_asks() -> None:
    """So that a cache between does not give one page's answer to another."""
    anybody = dict(Cors(["*"]).headers([(b"origin", b"https://a")]))
    listed = Cors(["https://a", "https://b"])

    assert b"*" == anybody[b"access-control-allow-origin"]
    asked = dict(listed.headers([(b"origin", b"https://b")]))
    assert (b"https://b", b"Origin") == (asked[b"access-control-allow-origin"], asked[b"vary"])
    assert b"access-control-allow-origin" not in dict(listed.headers([(b"origin", b"https://c")]))
    assert () == listed.headers([(b"host", b"a")])
