"""nginx and Envoy in front, with keep-alive and retries; through_proxies.py asks more."""

import asyncio

import pytest

from proxies import NAMES, proxy
from raw_http import connected
from serving import Replica

CLIENTS = 16
EACH = 150


SPEC = {"networking": {"maxConnectionAge": "1s"}}
"""Its connections live for a second, so that the proxy's end again and again."""


async def client(port: int, first: int) -> int:
    """Right answers of one closed loop over one connection to the proxy."""
    right = 0
    async with connected(port) as connection:
        for number in range(first, first + EACH):
            response = await connection.post_json("/predict", number)
            assert (200, str(number).encode()) == (response.status, response.body)
            right += 1
    return right


@pytest.mark.parametrize("name", NAMES)
async def test_every_request_through_a_proxy_is_answered(replica: Replica, name: str) -> None:
    """Whichever of its connections it chooses, and whenever that ends."""
    with proxy(name, replica.port) as port:
        counts = await asyncio.gather(*(client(port, 1000 * n) for n in range(CLIENTS)))

    assert CLIENTS * EACH == sum(counts)
