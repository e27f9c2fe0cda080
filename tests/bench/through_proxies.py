"""Whether requests through a proxy with keep-alive and retries all are answered rightly.

    python tests/bench/through_proxies.py --requests 100000

nginx (Debian) and Envoy (PyPI), one after the other, in front of one replica whose connections end
every few seconds. Every request has an id of its own, which its answer is compared with.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import uvloop
from harness import servers
from harness.connections import Fate
from harness.load import RunningLoad
from harness.report import Table, environment, help_of, out_option, report

from proxies import NAMES, proxy

_LONGEST_SECONDS: Final = 500.0


async def through(port: int, connections: int, requests: int) -> dict[str, Any]:
    """What came of as many requests."""
    began = time.monotonic()
    async with RunningLoad(port, connections) as load:
        while load.right + load.failed + load.wrong < requests:
            if time.monotonic() > began + _LONGEST_SECONDS:
                break
            await asyncio.sleep(0.05)
    return {
        "seconds": time.monotonic() - began,
        "right": load.right,
        "wrong": load.wrong,
        "statuses": dict(load.statuses),
        "unanswered": {fate.value: count for fate, count in load.fates.items()},
        "errors": load.wrong + load.failed + load.fates[Fate.UNREAD],
    }


def table(found: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """One row a proxy."""
    return Table(
        "Requests through a proxy",
        ["proxy", "right", "errors", "statuses but 200", "seconds"],
        [
            [
                name,
                f"{one['right']:,}",
                str(one["errors"]),
                str(one["statuses"] or "none"),
                f"{one['seconds']:.0f}",
            ]
            for name, one in found
        ],
    )


@click.command(help=help_of(__doc__))
@click.option("--requests", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True)
@click.option("--connections", type=click.IntRange(1, 500), default=64, show_default=True)
@click.option("--age", type=click.FloatRange(0, 300), default=5, show_default=True,
              help="maxConnectionAge of the replica, in seconds.")  # fmt: skip
@click.option("--port", default=servers.PORT + 600, show_default=True, help="First of two.")
@out_option
def main(*, requests: int, connections: int, age: float, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    value = servers.manifest("Echo", config={"milliseconds": 1})
    value["spec"]["networking"] = {"maxConnectionAge": f"{age:g}s"}
    found = []
    with servers.manifest_file(value) as file, servers.serving(file, port):
        for name in NAMES:
            with proxy(name, port) as front:
                found.append((name, uvloop.run(through(front, connections, requests))))
            click.echo(f"{name}: {found[-1][1]}")
    note = (
        f"{connections} clients with keep-alive; the proxy keeps connections to the replica and"
        f" retries with its defaults, Envoy on connect-failure and reset-before-request;"
        f" maxConnectionAge {age:g} s."
    )
    report("proxies", began, [table(found)], notes=[note], measured=dict(found), out=out)
    if any(one["errors"] or one["right"] < requests for _, one in found):
        sys.exit("a request through a proxy was not answered rightly: see the table")


if __name__ == "__main__":
    main()
