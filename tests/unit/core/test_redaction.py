"""What may be shown of a URL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core.redaction import without_secrets

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
