"""Keys as they are read and compared, and what is logged of whom."""

import hashlib
import hmac
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError, UnauthenticatedError
from batchedapi_serving.web import access
from batchedapi_serving.web.access import (
    RENEWED_SECONDS,
    CorsRules,
    KeyRing,
    is_preflight,
    needs_no_key,
    owner_of,
)
from batchedapi_serving.web.keys import expect_keys, read_keys


def keys_in(folder: Path, **files: str) -> Path:
    """A folder as a mounted Secret is: with a link to a folder that begins with a dot."""
    (folder / "..data").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def admits(keys: KeyRing, *headers: tuple[bytes, bytes]) -> bool:
    """Whether a request with these headers is answered."""
    try:
        keys.check(headers)
    except UnauthenticatedError:
        return False
    return True


def test_each_file_is_a_key_without_the_end_of_its_line(tmp_path: Path) -> None:
    """An editor ends a file with a line feed, which no header can have."""
    found = read_keys(keys_in(tmp_path, a="one\n", b="two"))

    assert {"a": hashlib.sha256(b"one").digest(), "b": hashlib.sha256(b"two").digest()} == found


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

    keys = KeyRing(keys_in(tmp_path, a="one", b="two", c="three"))
    monkeypatch.setattr(access, "hmac", Counted)

    for key in (b"one", b"three", b"x", b"x" * 1000):
        admits(keys, (b"x-api-key", key))

    assert [(32, 32)] * 12 == compared


def test_either_header_may_bring_it(tmp_path: Path) -> None:
    """A gateway may put its own Authorization in front of the client's key."""
    keys = KeyRing(keys_in(tmp_path, a="one"))

    assert admits(keys, (b"authorization", b"Basic abc"), (b"x-api-key", b"one"))
    assert admits(keys, (b"authorization", b"BEARER one"), (b"x-api-key", b"no"))
    assert not admits(keys, (b"authorization", b"Basic one"))
    assert not admits(keys)


class Renewed:
    """Keys, and a time that passes with each look at them."""

    def __init__(self, folder: Path) -> None:
        self.keys = KeyRing(folder)
        self._now = 0.0

    def admits(self, *given: bytes) -> list[bool]:
        """Whether each of these is a key, after the keys were read again."""
        for _ in range(2):  # that there is none is looked at twice
            self._now += 1.5 * RENEWED_SECONDS
            self.keys.renew(self._now)
        return [admits(self.keys, (b"x-api-key", key)) for key in given]


def test_keys_are_read_again_when_it_is_time(tmp_path: Path) -> None:
    """A mounted Secret changes without a restart; each look costs a read of each file."""
    keys = KeyRing(keys_in(tmp_path, a="one"))
    keys_in(tmp_path, b="two")
    keys.renew(0.5 * RENEWED_SECONDS)
    early = admits(keys, (b"x-api-key", b"two"))
    keys.renew(1.5 * RENEWED_SECONDS)

    assert (False, True) == (early, admits(keys, (b"x-api-key", b"two")))


def test_without_its_last_key_nobody_is_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever removes all keys wants to close the door, and a key that stays would keep it open."""
    renewed = Renewed(keys_in(tmp_path, a="one", b="two"))
    (tmp_path / "a").unlink()
    one_left = renewed.admits(b"one", b"two")
    (tmp_path / "b").unlink()
    none_left = renewed.admits(b"one", b"two")
    said = [record.message for record in caplog.records]
    keys_in(tmp_path, c="three")

    assert ([False, True], [False, False]) == (one_left, none_left)
    assert ["no key is left, and every request is refused"] == said
    assert [False, True] == renewed.admits(b"one", b"three")


def test_refusals_have_a_pace_and_those_who_wait_are_bounded(tmp_path: Path) -> None:
    """One who forgot the key hears at once; each who waits takes memory."""
    keys = KeyRing(keys_in(tmp_path, a="one"))
    pauses = [keys.pause(10.0 + number / 10_000) for number in range(1100)]

    assert [0.0] * 20 + [1.0] * 1000 + [0.0] * 80 == pauses
    assert 0.0 == keys.pause(11.1)


def test_a_folder_that_is_gone_has_no_keys(tmp_path: Path) -> None:
    """Removing the folder removes what is in it."""
    folder = tmp_path / "keys"
    folder.mkdir()
    renewed = Renewed(keys_in(folder, a="one"))
    (folder / "a").unlink()
    (folder / "..data").rmdir()
    folder.rmdir()

    assert [False] == renewed.admits(b"one")


def test_a_moment_without_keys_closes_nothing(tmp_path: Path) -> None:
    """A kubelet that renews a Secret removes old names before it makes new ones."""
    keys = KeyRing(keys_in(tmp_path, a="one"))
    (tmp_path / "a").unlink()
    keys.renew(1.5 * RENEWED_SECONDS)
    meanwhile = admits(keys, (b"x-api-key", b"one"))
    keys_in(tmp_path, b="two")
    keys.renew(1.5 * RENEWED_SECONDS + 1)

    assert meanwhile
    assert admits(keys, (b"x-api-key", b"two"))


def test_a_file_that_is_no_key_leaves_its_key_as_it_was_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in a Secret must not open the API, close it, or keep a key that went."""
    renewed = Renewed(keys_in(tmp_path, a="one", b="two"))
    keys_in(tmp_path, a="not a key")
    (tmp_path / "b").unlink()
    keys_in(tmp_path, c="three")

    assert [True, False, True] == renewed.admits(b"one", b"two", b"three")
    assert [True, False, True] == renewed.admits(b"one", b"two", b"three")
    assert 1 == [record.levelname for record in caplog.records].count("ERROR")


def test_while_the_folder_cannot_be_read_all_keys_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the disk is nobody's wish to close the door."""
    folder = tmp_path / "keys"
    folder.mkdir()
    renewed = Renewed(keys_in(folder, a="one"))
    folder.rename(tmp_path / "moved")
    folder.write_text("no folder")  # which cannot be listed, also by root

    assert [True] == renewed.admits(b"one")
    assert ["keys cannot be read, those before stay"] == [r.message for r in caplog.records]


def test_a_process_that_starts_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    """A web process that is replaced after the last key was removed."""
    renewed = Renewed(tmp_path)
    before = renewed.admits(b"", b"one")
    keys_in(tmp_path, a="one")

    assert ([False, False], [True]) == (before, renewed.admits(b"one"))


@pytest.mark.parametrize("text", ["", " ", "a b", "\u00e9", "a\nb"])
def test_what_cannot_be_a_key_is_refused_without_being_told(tmp_path: Path, text: str) -> None:
    """A file of two lines is a mistake, and its text a secret."""
    with pytest.raises(LoadError, match="file mine: expected one key") as raised:
        expect_keys(keys_in(tmp_path, mine=text))

    assert "a b" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "path", "is_open"),
    [
        (b"GET", b"/v2/health/ready", True),
        (b"HEAD", b"/docs", True),
        (b"POST", b"/v2/health/ready", False),
        (b"OPTIONS", b"/docs", False),
        (b"GET", b"/v2/models/api", False),
        (b"GET", b"/%64ocs", False),
        (b"GET", b"/docs/", False),
        (b"GET", b"//docs", False),
        (b"GET", b"/./docs", False),
        (b"GET", b"/Docs", False),
        (b"get", b"/docs", False),
        (b"GET", b"/docs/more", False),
        (b"GET", b"/docs2", False),
        (b"GET", b"/openapi.json/predict", False),
        (b"GET", b"/v2/health/", False),
    ],
)
def test_what_is_open_is_an_exact_list(method: bytes, path: bytes, *, is_open: bool) -> None:
    """A path that merely begins like an open one may be a prediction, or become one."""
    assert is_open == needs_no_key(method, path, ())


@pytest.mark.parametrize(
    ("header", "is_open"),
    [
        ((b"content-length", b"0"), True),
        ((b"content-length", b"1"), False),
        ((b"transfer-encoding", b"chunked"), False),
    ],
)
def test_a_body_needs_a_key(header: tuple[bytes, bytes], *, is_open: bool) -> None:
    """Nothing that is open takes one, and it would be held for whoever sends it."""
    asked = [(b"origin", b"https://a"), (b"access-control-request-method", b"POST"), header]

    assert is_open == needs_no_key(b"GET", b"/docs", [header])
    assert is_open == is_preflight(b"OPTIONS", asked)
    assert is_preflight(b"OPTIONS", asked[:2])
    assert not is_preflight(b"OPTIONS", asked[:1])
    assert not is_preflight(b"POST", asked[:2])


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "20010db800000000"),
        ("2001:db8::ffff:1", "20010db800000000"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("unix:", "unix:"),
    ],
)
def test_a_network_of_one_client_is_one_owner(address: str, owner: str) -> None:
    """Every client of IPv6 has 2^64 addresses, and a budget for each would be none."""
    assert owner == owner_of(address)


def test_any_origin_is_answered_with_a_star_and_a_list_with_the_one_that_asks() -> None:
    """So that a cache between does not give one page's answer to another."""
    anybody = dict(CorsRules(["*"]).headers([(b"origin", b"https://a")]))
    listed = CorsRules(["https://a", "https://b"])

    assert b"*" == anybody[b"access-control-allow-origin"]
    asked = dict(listed.headers([(b"origin", b"https://b")]))
    assert (b"https://b", b"Origin") == (asked[b"access-control-allow-origin"], asked[b"vary"])
    assert b"access-control-allow-origin" not in dict(listed.headers([(b"origin", b"https://c")]))
    assert () == listed.headers([(b"host", b"a")])
