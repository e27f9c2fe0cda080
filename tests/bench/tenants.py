"""What one tenant notices of another whose pods send far too much, or hardly anything.

    python tests/bench/tenants.py --seconds 20

Tenant A has 250 pods, tenant B 50 honest ones, all of them addresses of 127.0.0.0/8 at which a
process for each tenant answers. The operator's side is its own loop, scraper and core, at its own
pace; only the apiserver is left out. B is looked at without A, and beside A with each kind of
pages.
"""

import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from autoscaler_tick import Apiserver, pages_of_a_replica, put_api
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS
from batchedapi_operator.admin import Metrics
from batchedapi_operator.autoscaling.loop import Autoscaler
from batchedapi_operator.autoscaling.metrics_page import MAX_SERIES, MetricsPage
from batchedapi_operator.autoscaling.scrape import Outcome, Scraper, WebOutcome
from batchedapi_operator.cluster import JsonObject, ObjectKey
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.reconcile.views import PodView
from batchedapi_operator.store import Store

PORT: Final = 28150
PODS_OF_A: Final = 250
PODS_OF_B: Final = 50
HONEST: Final = "127.100"
KINDS: Final = {
    "honest": "127.107",
    "1 MiB, well-formed": "127.101",
    "1 MiB of junk": "127.102",
    "the most that is read": "127.103",
    "1 MiB, unannounced": "127.104",
    "trickling": "127.105",
    "all of these": "127.106",
}
"""What A's pods answer, by how their addresses begin."""
LATER_SECONDS: Final = 0.5
"""Of CPU by which the median look at B may take longer beside A than without: what passes by the
clock is also what the pods' processes, and whoever else is on the machine, take."""
MORE_MIB: Final = 64.0
"""That A may cost of the process's memory."""


def tenant(name: str, prefix: str, pods: int) -> tuple[str, list[str]]:
    """A name and its pods' addresses."""
    return name, [f"{prefix}.{number // 250}.{1 + number % 250}" for number in range(pods)]


class Answers:
    """What the pod at an address sends, head included, for ever or once."""

    def __init__(self) -> None:
        honest = pages_of_a_replica()[1].decode()
        lines = honest.splitlines(keepends=True)
        once = [line for line in lines if '"predict"' not in line]
        each = "".join(line for line in lines if '"predict"' in line)
        many = (each.replace('"predict"', f'"predict{number}"') for number in range(1000))
        several = "".join([*once, *many]).encode()
        self._honest = self._announced(honest.encode())
        junk = bytes(33 + (7 * number) % 90 for number in range(99)) + b"\n"
        self._kinds = [
            self._honest,
            self._announced(several[: 2**20]),
            self._announced(junk * (2**20 // len(junk))),
            self._announced(b"".join(several.splitlines(keepends=True)[:MAX_SERIES])),
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + several[: 2**20],
        ]

    @staticmethod
    def _announced(body: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def at(self, address: str) -> bytes | None:
        """Bytes to send; None: hardly any, for ever."""
        if address.startswith(HONEST):
            return self._honest
        kind = list(KINDS.values()).index(".".join(address.split(".")[:2]))
        if kind == len(KINDS) - 1:
            kind = int(address.rpartition(".")[2]) % (len(KINDS) - 1)
        return self._kinds[kind] if kind < len(self._kinds) else None


async def answer_as_pods(tenant_name: str, port: int) -> None:
    """Until killed; what pods compute is not on the operator's machine."""
    os.nice(10)
    answers = Answers()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("sockname")[0]
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                answer = answers.at(address)
                if answer is None:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n")
                    while True:
                        writer.write(b"b")
                        await writer.drain()
                        await asyncio.sleep(0.1)
                writer.write(answer)
                await writer.drain()
                if b"Connection: close" in answer[:64]:
                    break
        writer.close()

    # what is addressed to one of B's goes there, also where A listens on every address
    hosts = tenant("b", HONEST, PODS_OF_B)[1] if tenant_name == "b" else ["0.0.0.0"]
    server = await asyncio.start_server(serve, hosts, port, backlog=4096, reuse_port=True)
    async with server:
        print("listening", flush=True)
        await server.serve_forever()


@asynccontextmanager
async def pods(tenant_name: str, port: int) -> AsyncIterator[None]:
    """The tenant's process, up and stopped again: the other's must not wait for its."""
    command = [sys.executable, __file__, "--respond", tenant_name, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.wait()


@dataclass
class Looks:
    """A scraper that notes what came of each look at B."""

    scraper: Scraper
    answered: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """Of the process, for whomever, from the begin of a look at B to its end."""
    looks_of_a: int = 0
    read_of_a: int = 0

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As Scrapes."""
        of_b = bool(pods) and pods[0].ip.startswith(HONEST)
        self.looks_of_a += not of_b
        began, cpu = time.monotonic(), time.process_time()
        outcomes = await self.scraper.scrape(pods)
        read = sum(isinstance(one, MetricsPage) for one in outcomes)
        if of_b:
            self.answered.append(read)
            self.seconds.append(time.monotonic() - began)
            self.cpu_seconds.append(time.process_time() - cpu)
        else:
            self.read_of_a += read
        return outcomes

    async def scrape_web(self, pods: Sequence[PodView]) -> list[WebOutcome]:
        """As Scrapes; neither tenant has a queue."""
        return await self.scraper.scrape_web(pods)

    async def rows_come(self, pod: PodView) -> bool:
        """As Scrapes."""
        return await self.scraper.rows_come(pod)


def mebibytes() -> float:
    """Of this process."""
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure_beside(port: int, prefix: str | None, seconds: float) -> dict[str, Any]:
    """So many seconds of the loop, with B and whom else there is."""
    store, deployments = Store(), dict[ObjectKey, JsonObject]()
    tenants = [tenant("b", HONEST, PODS_OF_B)]
    if prefix is not None:
        tenants.insert(0, tenant("a", prefix, PODS_OF_A))
    for name, addresses in tenants:
        key, body = put_api(store, name, addresses)
        deployments[key] = body
    async with Scraper.opened(port) as scraper:
        looks, most = Looks(scraper), mebibytes()
        autoscaler = Autoscaler(Apiserver(deployments), store, looks, Metrics(), Outbox())
        running = asyncio.create_task(autoscaler.run())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.1)
            most = max(most, mebibytes())
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return {
        "looks": len(looks.answered),
        "answered": min(looks.answered, default=0),
        "seconds_median": statistics.median(looks.seconds),
        "seconds_worst": max(looks.seconds),
        "cpu_median": statistics.median(looks.cpu_seconds),
        "cpu_worst": max(looks.cpu_seconds),
        "looks_of_a": looks.looks_of_a,
        "read_of_a": looks.read_of_a,
        "mib": most,
    }


async def measure(port: int, seconds: float) -> dict[str, dict[str, Any]]:
    """B alone, and beside A of each kind."""
    async with pods("a", port), pods("b", port):
        found = {"absent": await measure_beside(port, None, seconds)}
        for kind, prefix in KINDS.items():
            found[kind] = await measure_beside(port, prefix, seconds)
        return found


def over(found: dict[str, dict[str, Any]]) -> list[str]:
    """What B, or the process, notices of A."""
    alone = found["absent"]
    unseen = [kind for kind, one in found.items() if one is not alone and not one["looks_of_a"]]
    if unseen:
        return [f"A was not looked at with pages {', '.join(unseen)}"]
    return [
        f"{what} beside A's pages {kind}"
        for kind, one in found.items()
        for what, exceeded in (
            (f"{one['answered']} of {PODS_OF_B} pods", one["answered"] < PODS_OF_B),
            (
                f"{one['cpu_median']:.2f} s of CPU until B was seen",
                one["cpu_median"] > alone["cpu_median"] + LATER_SECONDS,
            ),
            (f"{one['mib']:.0f} MiB", one["mib"] > alone["mib"] + MORE_MIB),
        )
        if exceeded
    ]


@click.command(help=help_of(__doc__))
@click.option("--seconds", type=click.FloatRange(min=4.0), default=20.0, show_default=True,
              help="Beside each kind of pages.")  # fmt: skip
@click.option("--port", default=PORT, show_default=True, help="Of the pods.")
@click.option("--respond", type=click.Choice(["a", "b"]), hidden=True)
@out_option
def main(*, seconds: float, port: int, respond: str | None, out: Path | None) -> None:
    """See the module's docstring."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if respond is not None:
        asyncio.run(answer_as_pods(respond, port))
        return
    began = environment()
    found = asyncio.run(measure(port, seconds))
    table = Table(
        f"Looks at the {PODS_OF_B} honest pods of tenant B, every {SECONDS_BETWEEN_LOOKS:g} s for"
        f" {seconds:g} s, beside {PODS_OF_A} pods of tenant A",
        ["A's pages", "looks at B", "B's pods read, least", "look s, median", "worst",
         "CPU s, median", "worst", "looks at A", "A's pages read", "MiB, most"],
        [
            [kind, str(one["looks"]), f"{one['answered']} of {PODS_OF_B}",
             f"{one['seconds_median']:.2f}", f"{one['seconds_worst']:.2f}",
             f"{one['cpu_median']:.2f}", f"{one['cpu_worst']:.2f}",
             str(one["looks_of_a"]), str(one["read_of_a"]), f"{one['mib']:.0f}"]
            for kind, one in found.items()
        ],
    )  # fmt: skip
    report("tenants", began, [table], notes=[], measured=found, out=out)
    if exceeded := over(found):
        sys.exit(f"over the limits: {'; '.join(exceeded)}")


if __name__ == "__main__":
    main()
