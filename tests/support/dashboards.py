"""Reads Grafana dashboards: panels, their queries, and the queries as Prometheus gets them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "charts" / "batchedapi" / "dashboards"
NAMES: Final = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query, the panel it draws, and the dashboard which that is on."""

    dashboard: str
    panel: str
    ref: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.ref}"


def load(name: str) -> dict[str, Any]:
    """A dashboard that the chart ships."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return document


def graphs(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels that draw something, without the titled rows between them."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(*names: str) -> list[PanelQuery]:
    """Every query of these dashboards, or of all, in reading order."""
    return [
        PanelQuery(name, panel["title"], target["refId"], target["expr"])
        for name in names or NAMES
        for panel in graphs(load(name))
        for target in panel["targets"]
    ]


def variables(expr: str) -> set[str]:
    """Names of the variables that `expr` uses, `__rate_interval` of Grafana's own among them."""
    return set(_VARIABLE.findall(expr))


def substitute(expr: str, values: Mapping[str, str]) -> str:
    """`expr` with every `$variable` replaced.

    Raises:
        KeyError: A variable has no value.
    """
    return _VARIABLE.sub(lambda match: values[match[1]], expr)
