"""Clients of an API with one queue for all, while a part of it is killed or stops.

    python tests/bench/shared_queue_faults.py --mode workers --requests 100000

    python tests/bench/shared_queue_faults.py --mode redis --kills 20

    python tests/bench/shared_queue_faults.py --mode web

    python tests/bench/shared_queue_faults.py --mode ids --requests 1000000

    python tests/bench/shared_queue_faults.py --mode lengths --requests 1000000

    python tests/bench/shared_queue_faults.py --mode rows --requests 10000000

workers: SIGKILL of a worker and all its processes, one after the other. redis: Redis is killed and
started again, with and without its data, stands still, is full, changes its password. web: SIGKILL
of a web process, then SIGTERM of its supervisor. ids: is any of so many ids swapped, lost or
answered twice. lengths: the same of rows of several lengths, which share batches by what padding
takes, through two workers. rows: so many rows in requests of 64; what grows. Each request has an id
of its own in all others, and every answer is compared with it.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
import identity
import orjson
import uvloop
import workloads
from harness import metrics, queued, servers, wrk
from harness.load import RunningLoads, recovery
from harness.processes import resident_kib, slope_per_hour
from harness.queued import Queued
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread

from batchedapi_core import contract

_BATCH_MS: Final = 5
_WORKER_MS: Final = 20
"""A batch where workers are killed, so that they have something in hand."""
_CALM_SECONDS: Final = 1.0
"""Of load before and after each fault."""
_FULL_SECONDS: Final = 8.0
_WRONG_PASSWORD_SECONDS: Final = 8.0
_ROWS_A_REQUEST: Final = workloads.MAX_BATCH
_LONGEST_SECONDS: Final = 540.0
_MOST_SECONDS_OF_IDS: Final = 3600.0
_MOST_MIB_AN_HOUR: Final = 60.0
"""That a process may seem to grow: a run of minutes, whose slope a page of an allocator moves."""

Fault = Callable[[Queued], Awaitable[None]]


def manifest(predictor: str = "Echo", milliseconds: int = _BATCH_MS) -> dict[str, Any]:
    """An API whose answers tell whose they are."""
    return servers.manifest(predictor, config={"milliseconds": milliseconds})


async def retaken(run: Queued) -> float:
    """Rows that workers which live now took from dead ones."""
    pages = [await asyncio.to_thread(metrics.read, one.admin_port) for one in run.workers]
    return sum(metrics.total(page, contract.METRIC_ROWS_RETAKEN) for page in pages)


# ---------------------------------------------------------------- workers


async def kill_workers(
    run: Queued, connections: int, requests: int, spacing: float
) -> dict[str, Any]:
    """One worker after the other is gone with all its processes, until so many were answered."""
    kills = taken = 0
    began = time.monotonic()
    async with RunningLoads(run.ports, connections) as loads:
        while loads.right < requests and time.monotonic() < began + _LONGEST_SECONDS:
            await asyncio.sleep(spacing)
            dead = random.choice(run.workers)
            queued.kill_whole(dead)
            kills += 1
            await run.restarted(dead)
            click.echo(f"{kills} kills, {loads.tally()}")
        taken = int(await retaken(run))
    run.note_ends()
    return {
        "fault": "SIGKILL of a worker", "times": kills, "recoveries": [], "retaken": taken,
        "seconds": time.monotonic() - began, **loads.tally(),
    }  # fmt: skip


# ---------------------------------------------------------------- Redis


async def under_load(
    name: str, run: Queued, fault: Fault, times: int, connections: int
) -> dict[str, Any]:
    """A fault so many times; each only once requests are answered again."""
    recoveries = []
    began = time.monotonic()
    async with RunningLoads(run.ports, connections) as loads:
        for _ in range(times):
            await asyncio.sleep(_CALM_SECONDS)
            await fault(run)
            over = time.monotonic()
            recoveries.append(max([await recovery(load, over) for load in loads.of_port.values()]))
        await asyncio.sleep(_CALM_SECONDS)
    run.note_ends()
    found = {
        "fault": name, "times": times, "recoveries": recoveries, "retaken": None,
        "seconds": time.monotonic() - began, **loads.tally(),
    }  # fmt: skip
    click.echo(f"{name}: {found}")
    return found


async def killed(run: Queued) -> None:
    """Redis is gone, and is there again."""
    await asyncio.to_thread(run.redis.kill)
    await asyncio.sleep(random.random() * 0.5)
    await asyncio.to_thread(run.redis.start)


def paused(seconds: float) -> Fault:
    """Redis stands still for so long."""

    async def fault(run: Queued) -> None:
        with run.redis.paused():
            await asyncio.sleep(seconds)

    return fault


async def full(run: Queued) -> None:
    """Redis takes nothing in any more, not even a sign of life."""
    await asyncio.to_thread(run.redis.ask, "CONFIG", "SET", "maxmemory", "1mb")
    await asyncio.sleep(_FULL_SECONDS)
    await asyncio.to_thread(run.redis.ask, "CONFIG", "SET", "maxmemory", "0")


async def another_password(run: Queued) -> None:
    """It is changed, all connections are cut, and after a while it is what it was."""
    user, password = (
        run.redis.environment["REDIS__USERNAME"],
        run.redis.environment["REDIS__PASSWORD"],
    )
    await asyncio.to_thread(run.redis.ask, "ACL", "SETUSER", user, "resetpass", ">another")
    await asyncio.to_thread(run.redis.ask, "CLIENT", "KILL", "USER", user)
    await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
    await asyncio.to_thread(run.redis.ask, "ACL", "SETUSER", user, "resetpass", f">{password}")


def redis_faults(port: int, connections: int, kills: int, pause: float) -> list[dict[str, Any]]:
    """Every fault of Redis, on an API of its own each."""
    cases: list[tuple[str, bool, Fault, int]] = [
        ("SIGKILL, without its data", False, killed, kills),
        ("SIGKILL, with an append-only file", True, killed, kills),
        (f"stands still for {pause:g} s", False, paused(pause), 1),
        (f"full for {_FULL_SECONDS:g} s", False, full, 2),
        (f"another password for {_WRONG_PASSWORD_SECONDS:g} s", False, another_password, 2),
    ]
    found = []
    for name, keeps, fault, times in cases:
        with queued.running(manifest(), port, web=2, workers=2, keeps=keeps) as run:
            found.append(uvloop.run(under_load(name, run, fault, times, connections)))
            found[-1]["ended"] = run.ended
    return found


# ---------------------------------------------------------------- web processes


async def kill_web(run: Queued, connections: int, rounds: int) -> list[dict[str, Any]]:
    """Web processes die, then others are asked to end; what clients of the other see each time."""
    found = []
    for name in ("SIGKILL of a web process", "SIGTERM of a web process and its supervisor"):
        began = time.monotonic()
        others = 0
        async with RunningLoads(run.ports, connections) as loads:
            for number in range(rounds):
                await asyncio.sleep(_CALM_SECONDS)
                server = run.web[number % 2]
                other = loads.of_port[run.web[1 - number % 2].port]
                before = other.failed + sum(other.fates.values())
                if name.startswith("SIGKILL"):
                    os.kill(queued.child(server, "web_process"), signal.SIGKILL)
                else:
                    server.process.terminate()
                    code = await asyncio.to_thread(server.process.wait)
                    if code:
                        run.ended.append(f"{server.name} ended with {code} after SIGTERM")
                    mine = loads.of_port[server.port]
                    so_far = mine.statuses[503]
                    server = await run.restarted(server)
                    # Until it is ready, no Service sends anything to it; these clients did.
                    mine.statuses[503] = so_far
                await recovery(loads.of_port[server.port], time.monotonic())
                others += other.failed + sum(other.fates.values()) - before
        run.note_ends()
        found.append(
            {"fault": name, "times": rounds, "recoveries": [], "retaken": None, "others": others,
             "most_broken": rounds * connections // 2,
             "seconds": time.monotonic() - began, **loads.tally()}
        )  # fmt: skip
        click.echo(f"{found[-1]}")
    return found


# ---------------------------------------------------------------- ids


async def drive_ids(run: Queued, ids: identity.Ids, connections: int, limit: float) -> float:
    """Ask everything, over all web processes."""
    share = connections // len(run.ports)
    took = await asyncio.gather(*(identity.drive(port, ids, share, limit) for port in run.ports))
    return max(took)


def ask_ids(port: int, count: int, connections: int, size: int, *, lengths: bool) -> dict[str, Any]:
    """Through 2 web and `size` worker processes; as rows of several `lengths` if so."""
    ids = identity.Ids(count, lengths=lengths)
    value = manifest("PaddedEcho" if lengths else "Echo", milliseconds=0)
    with queued.running(value, port, web=2, workers=size) as run:
        seconds = uvloop.run(drive_ids(run, ids, connections, _MOST_SECONDS_OF_IDS))
        web = [metrics.read(one.admin_port) for one in run.web]
        workers = [metrics.read(one.admin_port) for one in run.workers]
    rows = [metrics.total(page, f"{contract.METRIC_BATCH_ROWS}_sum") for page in workers]
    batches = [metrics.total(page, contract.METRIC_BATCHES) for page in workers]
    apart = [metrics.total(page, contract.METRIC_BATCHES, reason="shape") for page in workers]
    counted = sum(metrics.total(page, contract.METRIC_REQUESTS, code="200") for page in web)
    return {
        "ids": count, "requests": ids.requests, "swapped": ids.tally.swapped,
        "lost": ids.tally.lost, "duplicated": ids.tally.duplicated,
        "surplus bytes": ids.surplus_bytes, "failed requests": ids.failed,
        "seconds": round(seconds, 1), "counted requests": int(counted),
        "rows of each worker": " ".join(f"{count:,.0f}" for count in rows),
        "counted rows": int(sum(rows)), "mean batch": round(sum(rows) / sum(batches), 1),
        "batches by length": f"{sum(apart) / sum(batches):.0%}",
    }  # fmt: skip


# ---------------------------------------------------------------- rows


def roles(run: Queued) -> dict[str, int]:
    """Pid of each process that is to stay as large as it is."""
    assert run.redis.process is not None
    web, worker = run.web[0], run.workers[0]
    return {
        "Redis": run.redis.process.pid,
        "web process": queued.child(web, "web_process"),
        "worker process": queued.child(worker, "worker_process"),
        "model process": queued.child(worker, "model"),
    }


def ask_rows(port: int, count: int, connections: int, seconds: float) -> dict[str, Any]:
    """Requests of 64 rows through a web process and two workers; memory after each round."""
    body = orjson.dumps({"instances": list(range(_ROWS_A_REQUEST))})
    samples: list[dict[str, Any]] = []
    answered = errors = 0
    with queued.running(manifest(milliseconds=0), port, workers=2) as run:
        pids = roles(run)
        began = time.monotonic()
        while answered * _ROWS_A_REQUEST < count:
            result = wrk.timed(run.web[0], body, connections, seconds)
            answered += result.requests - result.refused
            errors += result.errors
            samples.append(
                {"seconds": time.monotonic() - began, "rows": answered * _ROWS_A_REQUEST,
                 "kib": {role: resident_kib(pid) for role, pid in pids.items()}}
            )  # fmt: skip
            click.echo(f"{samples[-1]}")
        left = {
            key: run.redis.ask("TYPE", key).strip() + " " + run.redis.ask("XLEN", key).strip()
            for key in run.redis.keys("*rows*")
        }
    settled = samples[len(samples) // 5 :]
    slopes = {
        role: slope_per_hour([(s["seconds"], s["kib"][role]) for s in settled]) / 1024
        for role in pids
    }
    return {
        "rows": answered * _ROWS_A_REQUEST, "errors": errors, "samples": samples,
        "mib_per_hour": slopes, "left": left, "ended": run.ended,
    }  # fmt: skip


def rows_table(found: dict[str, Any]) -> Table:
    """Memory of each process at points of the run."""
    samples = found["samples"]
    points = sorted({round(i * (len(samples) - 1) / 5) for i in range(6)})
    columns = ["process", *(f"MiB at {samples[i]['rows'] / 1e6:.1f} M" for i in points)]
    rows = [
        [role, *(f"{samples[i]['kib'][role] / 1024:.1f}" for i in points), f"{slope:+.1f}"]
        for role, slope in found["mib_per_hour"].items()
    ]
    return Table(
        f"{found['rows']:,} rows, {found['errors']} errors: resident memory",
        [*columns, "MiB an hour after a fifth"],
        rows,
    )


# ---------------------------------------------------------------- report


def faults_table(found: list[dict[str, Any]]) -> Table:
    """One row a fault."""
    columns = [
        "fault", "times", "right", "wrong", "lost", "unread", "503", "other statuses",
        "retaken rows", "answered again after s", "slowest s",
    ]  # fmt: skip
    rows = [
        [
            one["fault"], str(one["times"]), f"{one['right']:,}", str(one["wrong"]),
            str(one["lost"]), str(one["unread"]), f"{one['refused']:,}",
            str(one["statuses"] or "none"),
            "" if one["retaken"] is None else f"{one['retaken']:,}",
            Spread.of(one["recoveries"]).text(2) if one["recoveries"] else "",
            f"{one['slowest']:.2f}",
        ]
        for one in found
    ]  # fmt: skip
    return Table("Under load, every answer compared with what was asked", columns, rows)


def _failed(one: dict[str, Any]) -> bool:
    """Whether more happened than the guide promises."""
    if "most_broken" in one:
        broken = one["lost"] + one["unread"]
        spared = one["most_broken"] if one["fault"].startswith("SIGKILL") else 0
        return bool(one["others"] or one["wrong"] or one["statuses"] or one["refused"]) or (
            broken > spared
        )
    may_refuse = not one["fault"].startswith("SIGKILL")
    return bool(
        one["wrong"] or one["lost"] or one["unread"] or one["statuses"]
        or (one["refused"] and not may_refuse) or one.get("ended")
    )  # fmt: skip


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(["workers", "redis", "web", "ids", "lengths", "rows"]),
              default="workers", show_default=True)  # fmt: skip
@click.option("--requests", type=click.IntRange(100), default=100_000, show_default=True,
              help="Modes workers, ids and lengths (ids), and rows (rows).")  # fmt: skip
@click.option("--spacing", type=click.FloatRange(0.1, 60), default=5, show_default=True,
              help="Mode workers: seconds from a restart to the next kill.")  # fmt: skip
@click.option("--kills", type=click.IntRange(1, 1000), default=20, show_default=True,
              help="Modes redis and web.")  # fmt: skip
@click.option("--pause", type=click.FloatRange(0.1, 120), default=30, show_default=True,
              help="Mode redis: seconds that it stands still.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1, 60), default=5, show_default=True,
              help="Mode rows: of a round.")  # fmt: skip
@click.option("--connections", type=click.IntRange(2, 500), default=64, show_default=True)
@click.option("--port", default=servers.PORT + 1000, show_default=True,
              help=f"First of {queued.PORTS}.")  # fmt: skip
@out_option
def main(
    *,
    mode: str,
    requests: int,
    spacing: float,
    kills: int,
    pause: float,
    seconds: float,
    connections: int,
    port: int,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    if mode in ("ids", "lengths"):
        workers = 4 if mode == "ids" else 2
        result = ask_ids(port, requests, connections, workers, lengths=mode == "lengths")
        cells = [f"{v:,}" if isinstance(v, int) else str(v) for v in result.values()]
        table = Table(f"ids through 2 web processes and {workers} workers", list(result), [cells])
        report(f"shared_queue-{mode}", began, [table], notes=[], measured=result, out=out)
        wrong = ("swapped", "lost", "duplicated", "surplus bytes", "failed requests")
        if any(result[key] for key in wrong) or (result["counted rows"] != requests):
            sys.exit("not every id came back once, or the workers counted others: see the table")
        return
    if mode == "rows":
        wrk.require_wrk()
        found = ask_rows(port, requests, connections, seconds)
        note = f"{connections} clients, {_ROWS_A_REQUEST} rows a request, two workers."
        report(
            "shared_queue-rows", began, [rows_table(found)], notes=[note], measured=found, out=out
        )
        if found["errors"] or max(found["mib_per_hour"].values()) > _MOST_MIB_AN_HOUR:
            sys.exit("errors, or a process grows: see the table")
        return
    if mode == "redis":
        faults = redis_faults(port, connections, kills, pause)
    elif mode == "workers":
        with queued.running(manifest(milliseconds=_WORKER_MS), port, web=2, workers=4) as run:
            faults = [uvloop.run(kill_workers(run, connections, requests, spacing))]
            faults[0]["ended"] = run.ended
    else:
        with queued.running(manifest(), port, web=2, workers=2) as run:
            faults = uvloop.run(kill_web(run, connections, kills))
            faults[0]["ended"] = run.ended
    note = (
        f"{connections} clients on two web processes, {_BATCH_MS} ms a batch (workers:"
        f" {_WORKER_MS}). Unread: the connection was closed before the request was read. A wrong"
        " answer is one that belongs to another request, or comes a second time."
    )
    report(
        f"shared_queue-{mode}", began, [faults_table(faults)], notes=[note],
        measured={"faults": faults}, out=out,
    )  # fmt: skip
    if ended := [text for one in faults for text in one.get("ended", ())]:
        sys.exit("processes ended: " + "\n".join(ended))
    if any(_failed(one) for one in faults):
        sys.exit("requests were lost, or more happened than is promised: see the table")


if __name__ == "__main__":
    main()
