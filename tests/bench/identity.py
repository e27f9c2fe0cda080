"""Whether every answer goes to whoever asked: no id swapped, lost or answered twice.

    python tests/bench/identity.py --ids 1000000 --connections 256

Distinct ids go through an echo. Most requests are one JSON item; of every thousand ten hold five
instances, ten are .npy arrays of seven, one holds 100 instances, which is more than a batch takes.
Ids are above 2**53, so that they survive only as integers.
"""

import asyncio
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import uvloop
from harness import metrics, servers
from harness.connections import Ask, Fate, run_client
from harness.http_answers import request
from harness.load import finish
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

FIRST_ID: Final = 2**53 + 1
_INSTANCES: Final = 5
_NPY: Final = 7
_OVERSIZE: Final = 100
_LENGTHS: Final = (1, 3, 5, 8, 8, 13, 21, 60)
"""Of rows in turn, where they have lengths: a row is its id so many times."""


class Tally:
    """Counts, over ids FIRST_ID to FIRST_ID + total, who was answered what."""

    def __init__(self, total: int) -> None:
        self._times = bytearray(total)  # answers that hold this id, 255 at most
        self.swapped = 0
        """Rows answered with anything but the id that was asked."""

    def answered(self, asked: range, answer: Sequence[Any]) -> None:
        """One answer came for `asked`."""
        given = list(answer)
        if given != list(asked):
            right = sum(a == b for a, b in zip(asked, given, strict=False))
            self.swapped += max(len(asked), len(given)) - right
        for number in given:
            index = number - FIRST_ID if isinstance(number, int) else -1
            if 0 <= index < len(self._times) and self._times[index] < 255:
                self._times[index] += 1

    @property
    def lost(self) -> int:
        """Ids that no answer holds."""
        return self._times.count(0)

    @property
    def duplicated(self) -> int:
        """Ids that more than one answer holds."""
        return len(self._times) - self._times.count(0) - self._times.count(1)


def rows_of(number: int) -> int:
    """Ids in the request with that number; the content type follows from it."""
    if number % 1000 == 999:
        return _OVERSIZE
    match number % 100:
        case 50:
            return _INSTANCES
        case 75:
            return _NPY
        case _:
            return 1


def row_of(number: int, *, lengths: bool) -> int | list[int]:
    """The row of an id: the id, or a list of it whose length follows from it."""
    return [number] * _LENGTHS[number % len(_LENGTHS)] if lengths else number


def encode(ids: range, *, lengths: bool = False) -> bytes:
    """The request for these ids; an array has rows of one length."""
    rows = [row_of(number, lengths=lengths) for number in ids]
    if len(ids) == 1:
        return request(contract.PATH_PREDICT, contract.JSON, json.dumps(rows[0]).encode())
    if len(ids) == _NPY:
        stream = io.BytesIO()
        array = np.array(ids, dtype=np.int64)
        length = _LENGTHS[ids[0] % len(_LENGTHS)]
        np.save(stream, np.repeat(array[:, None], length, axis=1) if lengths else array)
        return request(contract.PATH_PREDICT, contract.NPY, stream.getvalue())
    body = json.dumps({"instances": rows}).encode()
    return request(contract.PATH_PREDICT, contract.JSON, body)


def decode(asked: range, body: bytes) -> list[Any]:
    """The ids in an answer, which is written as its request was."""
    if len(asked) == 1:
        return [json.loads(body)]
    if len(asked) == _NPY:
        ids: list[Any] = np.load(io.BytesIO(body)).tolist()
        return ids
    predictions: list[Any] = json.loads(body)["predictions"]
    return predictions


class Ids:
    """The exchange: ids in order, each asked once; as rows of several `lengths` if so."""

    def __init__(self, total: int, *, lengths: bool = False) -> None:
        self.tally = Tally(total)
        self._lengths = lengths
        self._next = FIRST_ID
        self._end = FIRST_ID + total
        self.requests = 0
        self.failed = 0
        self.surplus_bytes = 0

    @property
    def running(self) -> bool:
        """See Exchange."""
        return self._next < self._end

    def ask(self) -> Ask | None:
        """See Exchange."""
        if self._next >= self._end:
            return None
        ids = range(self._next, min(self._next + rows_of(self.requests), self._end))
        self._next = ids.stop
        self.requests += 1
        return Ask(encode(ids, lengths=self._lengths), ids)

    def answered(self, ask: Ask, status: int, body: bytes) -> None:
        """See Exchange."""
        if status == 200:
            self.tally.answered(ask.ids, decode(ask.ids, body))
        else:
            self.failed += 1

    def unanswered(self, ask: Ask, fate: Fate) -> None:  # noqa: ARG002 - its ids are missing
        """See Exchange."""
        self.failed += 1

    def surplus(self, data: bytes) -> None:
        """See Exchange."""
        self.surplus_bytes += len(data)


async def drive(port: int, ids: Ids, connections: int, limit: float) -> float:
    """Ask everything; the seconds it took. Clients still waiting after `limit` are given up."""
    began = time.monotonic()
    await finish([asyncio.create_task(run_client(port, ids)) for _ in range(connections)], limit)
    return time.monotonic() - began


@click.command(help=help_of(__doc__))
@click.option("--ids", "count", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--connections", type=click.IntRange(1, 1000), default=256, show_default=True)
@click.option("--limit", type=click.IntRange(1, 3600), default=300, show_default=True,
              help="Seconds after which what is missing is lost.")  # fmt: skip
@click.option("--port", default=servers.PORT + 200, show_default=True, help="First of two.")
@out_option
def main(count: int, connections: int, limit: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    ids = Ids(count)
    with servers.serving_workload("Echo", port) as server:
        before = metrics.read(server.admin_port)
        seconds = uvloop.run(drive(port, ids, connections, limit))
        after = metrics.read(server.admin_port)
    batches = metrics.batch_delta(before, after)
    counted = {
        "requests": metrics.change(before, after, contract.METRIC_REQUESTS, code="200"),
        "rows": metrics.change(before, after, f"{contract.METRIC_BATCH_ROWS}_sum"),
        "batches by reason": metrics.change(before, after, contract.METRIC_BATCHES),
        "batches": batches.batches,
    }
    tally = ids.tally
    result = {
        "ids": count,
        "requests": ids.requests,
        "connections": connections,
        "swapped": tally.swapped,
        "lost": tally.lost,
        "duplicated": tally.duplicated,
        "surplus bytes": ids.surplus_bytes,
        "failed requests": ids.failed,
        "seconds": round(seconds, 1),
        "mean batch": round(batches.mean, 1),
        "counted requests": int(counted["requests"]),
        "counted rows": int(counted["rows"]),
    }
    wrongly_counted = (
        counted["requests"] != ids.requests
        or counted["rows"] != count
        or counted["batches"] != counted["batches by reason"]
    )
    table = Table("ids through an echo", list(result), [[f"{v:,}" for v in result.values()]])
    report("identity", began, [table], notes=[], measured=result, out=out)
    if wrongly_counted:
        sys.exit(f"the replica counted something else than its clients: {counted}")
    if tally.swapped or tally.lost or tally.duplicated or ids.failed or ids.surplus_bytes:
        sys.exit("not every id came back once, to whoever asked for it: see the table")


if __name__ == "__main__":
    main()
