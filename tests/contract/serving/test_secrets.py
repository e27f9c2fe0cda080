"""Passwords in URLs: whoever may read logs, or what a pod said as it ended, does not read them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from ports import HOST, free_port
from serving import ECHO, Replica, end_replica, start_replica, write_manifest

SECRET = "s3cr3t"  # noqa: S105 - of nothing


def said(replica: Replica, *words: str) -> str:
    """Its log, once it has these words, or has ended."""

    def there() -> bool:
        text = replica.text()
        return all(word in text for word in words) or replica.process.poll() is not None

    try:
        replica.wait_for(there, f"never said {words}")
    except AssertionError:
        assert replica.process.poll() is not None
    return replica.text()


@pytest.mark.parametrize(
    ("spec", "environment", "words"),
    [
        (
            {"predictor": {"model": {"uri": "http://me:s3cr3t@host/model?sig=s3cr3t"}}},
            {},
            ("http://***@host/model?***",),
        ),
        (
            {},
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://me:s3cr3t@collector:4318?key=s3cr3t"},
            ("ftp://***@collector:4318?***",),
        ),
        (
            {"serverSideBatching": {"queue": {"redis": {}}}},
            {"REDIS__HOST": "redis://:s3cr3t@nowhere.invalid", "REDIS__PASSWORD": SECRET},
            ("redis://***@nowhere.invalid",),
        ),
    ],
    ids=["model", "collector", "redis"],
)
def test_a_password_of_a_url_is_not_logged(
    tmp_path: Path, spec: dict[str, Any], environment: dict[str, str], words: tuple[str, ...]
) -> None:
    """Where it is said what is wrong with it: host and path are, and stay."""
    file = write_manifest(tmp_path, ECHO, spec)
    replica = start_replica(tmp_path, ["-f", str(file)], environment)
    try:
        text = said(replica, *words)
    finally:
        end_replica(replica)

    assert SECRET not in text
    assert all(word in text for word in words), text


def test_a_collector_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    """It is told when spans are dropped, in the log of each replica."""
    endpoint = f"http://me:s3cr3t@{HOST}:{free_port()}"
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    replica = start_replica(tmp_path, ["-f", str(write_manifest(tmp_path, ECHO, {}))], environment)
    try:
        replica.wait_ready()
        httpx.post(f"http://{HOST}:{replica.port}/predict", json=1)
        text = said(replica, "spans are dropped")
    finally:
        end_replica(replica)

    assert "http://***@" in text
    assert SECRET not in text
