"""The parts of a URL that may be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core.redaction import for_people, without_secrets
from odd_texts import ODD_TEXTS

SECRET = "s3cr3t"  # noqa: S105 - of nothing


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no address at all", "no address at all"),
        ("https://host/path#part", "https://host/path#part"),
        ("http://host:4318/v1/traces", "http://host:4318/v1/traces"),
        ("http://user:s3cr3t@host:4318/v1", "http://***@host:4318/v1"),
        ("redis://:s3cr3t@host:6379/0", "redis://***@host:6379/0"),
        ("https://s3cr3t@host", "https://***@host"),
        ("redis://a:s3@cr3t@host/0", "redis://***@host/0"),
        ("redis://:s3cr3t/more@host/0", "redis://***@host/0"),
        ("https://host/model?X-Amz-Signature=s3cr3t&x=1", "https://host/model?***"),
        ("s3://bucket/key?token=s3cr3t: not found", "s3://bucket/key?*** not found"),
        ("https://host/@scope/package", "https://host/@scope/package"),
        ("https://host:80/@scope/package", "https://host:80/@scope/package"),
        ("https://[::1]:80/@scope", "https://[::1]:80/@scope"),
        ("'https://u:s3cr3t@a/?s3cr3t' and \"http://b?s3cr3t\"", "'https://***@a/?***' and \"http://b?***\""),
        ("image@sha256:12 from name:tag@sha256:34", "image@sha256:12 from name:tag@sha256:34"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_secrets(text: str, shown: str) -> None:
    """Host, port and path say where; a user, a password and a signature say who."""
    assert shown == without_secrets(text)
    assert SECRET not in without_secrets(text)
    assert shown == without_secrets(shown)


@given(st.text(st.characters(exclude_characters="/?#@\"'<>\\", exclude_categories=["Z", "C"])))
def test_no_password_is_shown(password: str) -> None:
    """Whatever is in it that may stand there."""
    text = f"cannot reach redis://me:{password}~{SECRET}@host:6379/0: refused"

    assert SECRET not in without_secrets(text)


@given(st.text(max_size=200))
def test_any_text_is_shown(text: str) -> None:
    """Once and twice alike; nobody waits for it."""
    assert isinstance(without_secrets(text + "://" + text), str)


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_any_text_is_shown_without_what_a_terminal_acts_on(text: str) -> None:
    """A pod chooses what stands in its termination message, and an admin's terminal shows it."""
    shown = for_people(text)

    shown.encode()
    assert not set(shown) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}
    assert for_people(shown) == shown


def test_it_is_otherwise_as_it_was() -> None:
    """Lines of a traceback stay, and letters of whatever alphabet."""
    assert "a\tb\n\u00fc \u6c49 https://***@host" == for_people(
        "a\tb\n\u00fc \u6c49 https://me@host"
    )
    assert "\\u001b[31m\\ud800" == for_people("\x1b[31m\ud800")
