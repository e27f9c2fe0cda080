"""Clients that others wrote, with their defaults, over connections that end every second."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import pytest
import requests

from ports import HOST
from programs import installed
from serving import Replica

CLIENTS: Final = Path(__file__).parent / "clients"
COUNT: Final = 1008
AT_ONCE: Final = 16
SECONDS: Final = 2.5
"""How long clients of Python go on: longer than two connections live."""


SPEC = {"networking": {"maxConnectionAge": "1s"}}
"""Its connections live for a second."""


@pytest.fixture
def url(replica: Replica) -> str:
    """The URL of its predictions."""
    return f"http://{HOST}:{replica.port}/predict"


def output_of(*command: str) -> str:
    """The output of a program.

    Raises:
        AssertionError: it failed; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("program", "package", "command"),
    [
        ("java", "default-jdk-headless", ("Ask.java",)),
        ("go", "golang-go", ("run", "ask.go")),
        ("node", "nodejs", ("ask.mjs",)),
    ],
)
def test_a_client_of_another_language(
    url: str, program: str, package: str, command: tuple[str, ...]
) -> None:
    """Every one of its requests is answered, whichever connection its pool chooses."""
    *how, file = command
    words = [installed(program, package), *how, str(CLIENTS / file)]

    assert f"{COUNT} right" == output_of(*words, url, str(COUNT), str(AT_ONCE)).strip()


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2", ""])
def test_curl(replica: Replica, url: str, version: str, tmp_path: Path) -> None:
    """Its versions, a HEAD, and a body for which it expects 100-continue; over one connection."""
    large = tmp_path / "large.json"
    large.write_bytes(b'"' + b"x" * 3_000_000 + b'"')
    curl = [installed("curl", "curl"), "-sS", "--fail", *version.split()]
    json = ["-H", "content-type: application/json"]

    small = output_of(*curl, *json, "-d", "[7]", url, url, url)
    answer = output_of(
        *curl, *json, "-H", "expect: 100-continue", "--data-binary", f"@{large}", url
    )
    head = output_of(*curl, "--head", f"http://{HOST}:{replica.port}/docs")

    assert "[7][7][7]" == small
    assert large.read_text() == answer
    assert "200 OK" in head


def in_threads(one: Callable[[int], Any]) -> list[Any]:
    """The answers of `one` to 0, 1, ..., from several threads, for longer than connections live."""
    end = time.monotonic() + SECONDS

    def seat(first: int) -> list[bool]:
        found, number = [], first
        while time.monotonic() < end:
            found.append(one(number) == number)
            number += AT_ONCE
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [right for found in pool.map(seat, range(AT_ONCE)) for right in found]


def test_requests_and_httpx(url: str) -> None:
    """Pools of threads."""
    with requests.Session() as session, httpx.Client() as client:
        first = in_threads(lambda number: session.post(url, json=number, timeout=30).json())
        second = in_threads(lambda number: client.post(url, json=number, timeout=30).json())

    assert {True} == {*first, *second}
    assert min(len(first), len(second)) > AT_ONCE


async def test_aiohttp(url: str) -> None:
    """A pool of tasks."""
    end = time.monotonic() + SECONDS

    async def seat(session: aiohttp.ClientSession, number: int) -> int:
        asked = 0
        while time.monotonic() < end:
            async with session.post(url, json=number) as answer:
                assert await answer.json() == number
                asked += 1
        return asked

    async with aiohttp.ClientSession() as session:
        counts = await asyncio.gather(*(seat(session, number) for number in range(AT_ONCE)))

    assert min(counts) > 1
