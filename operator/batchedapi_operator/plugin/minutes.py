"""What the operator recorded of each minute, and what it cost."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from batchedapi_core import contract
from batchedapi_core.scaling.minutes import MINUTE, MINUTES_A_DAY, Minute, Minutes
from batchedapi_operator.cluster import JsonObject, section
from batchedapi_operator.plugin.replicas import read_config_map
from batchedapi_operator.plugin.why import number, table
from batchedapi_operator.resources import record_name

_HEAD: Final = ("DAY", "HOURS", "REPLICA-HOURS", "ROWS", "REPLICA-SECONDS/1000 ROWS", "IDLE")
_PRICES: Final = ("PRICE", "PRICE/1000 ROWS")


def read_minutes(namespace: str, name: str) -> list[Minute]:
    """All that the record of an API has, the oldest first.

    Raises:
        ClickException: There is none, or it cannot be read.
    """
    found = read_config_map(namespace, record_name(name))
    known = Minutes.restored(section(found or {}, "data").get(contract.RECORD_KEY))
    if known is None:
        raise click.ClickException(
            f"{name}: nothing is recorded yet, or ConfigMap {record_name(name)!r} is damaged, which"
            " the operator mends, or somebody else's, which it leaves alone; it writes every 10"
            " minutes what it saw in mode Native"
        )
    return list(known)


def time_of(minute: Minute) -> datetime:
    """When it began."""
    return datetime.fromtimestamp(MINUTE * minute.time, UTC)


def cost_rows(minutes: Iterable[Minute], price: float | None) -> list[JsonObject]:
    """A row for each day of UTC, and one for all; `price` is that of a replica for an hour."""
    seen = [one for one in minutes if one.demand is not None or one.replicas]
    days = itertools.groupby(seen, lambda one: one.time // MINUTES_A_DAY)
    parts = [(time_of(found[0]).strftime("%Y-%m-%d"), found) for _, group in days
             if (found := list(group))]  # fmt: skip
    return [_row(day, found, price) for day, found in (*parts, ("all", seen))]


def _row(day: str, minutes: Sequence[Minute], price: float | None) -> JsonObject:
    replicas, busy = sum(one.replicas for one in minutes), sum(one.busy for one in minutes)
    thousands = sum(one.rows for one in minutes) * MINUTE / 1000.0
    row = {
        "day": day,
        "hours": len(minutes) / 60.0,
        "replicaHours": replicas / 60.0,
        "rows": 1000.0 * thousands,
        "replicaSecondsPer1000Rows": replicas * MINUTE / thousands if thousands else None,
        "idle": 1.0 - busy / replicas if replicas else None,
    }
    if price is not None:
        total = price * replicas / 60.0
        row |= {"price": total, "pricePer1000Rows": total / thousands if thousands else None}
    return row


def cost_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each row, under a head."""
    priced = "price" in rows[-1]
    lines = [
        (
            row["day"],
            f"{row['hours']:.1f}",
            f"{row['replicaHours']:.1f}",
            f"{row['rows']:.0f}",
            _shown(row["replicaSecondsPer1000Rows"]),
            "-" if row["idle"] is None else f"{100.0 * row['idle']:.0f} %",
            *((_shown(row["price"]), _shown(row["pricePer1000Rows"])) if priced else ()),
        )
        for row in rows
    ]
    return table((*_HEAD, *_PRICES) if priced else _HEAD, lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
