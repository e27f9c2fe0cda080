"""Panels of a Grafana dashboard as values, and the JSON that Grafana reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

GRID_WIDTH: Final = 24
SCHEMA_VERSION: Final = 41
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ROW_HEIGHT: Final = 1


class Look(StrEnum):
    """How the series of a panel are drawn."""

    LINES = "lines"
    STEPS = "steps"
    """Values that jump, such as replica counts, without slopes that never were."""
    SHARES = "shares"
    """Stacked to 100 %."""
    STACKED = "stacked"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called (`{{label}}` is Grafana's)."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph; the description says what to look for."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    look: Look = Look.LINES
    width: int = 8
    height: int = 8
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A titled row and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


def place(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Panels from left to right, a new line where one does not fit, ids in reading order."""
    placed: list[dict[str, Any]] = []
    y = 0
    for section in sections:
        placed.append(_row(section.title, y, len(placed) + 1))
        y += _ROW_HEIGHT
        x = line_height = 0
        for panel in section.panels:
            if x + panel.width > GRID_WIDTH:
                x, y, line_height = 0, y + line_height, 0
            grid = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            placed.append(_panel(panel, grid, len(placed) + 1))
            x += panel.width
            line_height = max(line_height, panel.height)
        y += line_height
    return placed


def _row(title: str, y: int, number: int) -> dict[str, Any]:
    grid = {"h": _ROW_HEIGHT, "w": GRID_WIDTH, "x": 0, "y": y}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": grid,
        "panels": [],
    }


def _panel(panel: Panel, grid: dict[str, int], number: int) -> dict[str, Any]:
    heatmap = panel.look is Look.HEATMAP
    return {
        "id": number,
        "type": "heatmap" if heatmap else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": grid,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": "heatmap" if heatmap else "time_series",
                "range": True,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _heatmap_options(panel) if heatmap else _timeseries_options(),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.look is Look.HEATMAP:
        return {"unit": panel.unit, "custom": {"hideFrom": _SHOWN, "scaleDistribution": _LINEAR}}
    stacking = {Look.SHARES: "percent", Look.STACKED: "normal"}.get(panel.look, "none")
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if panel.look is Look.STEPS else "linear",
        "lineWidth": 1,
        "fillOpacity": 0 if stacking == "none" else 40,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": stacking, "group": "A"},
        "axisPlacement": "auto",
        "hideFrom": _SHOWN,
        "scaleDistribution": _LINEAR,
    }
    limits = {} if panel.maximum is None else {"max": panel.maximum}
    return {"unit": panel.unit, "min": 0} | limits | {"custom": custom}


_SHOWN: Final = {"legend": False, "tooltip": False, "viz": False}
_LINEAR: Final = {"type": "linear"}


def _timeseries_options() -> dict[str, Any]:
    return {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _heatmap_options(panel: Panel) -> dict[str, Any]:
    """Buckets are counted by the server already: `calculate` would bin them a second time."""
    return {
        "calculate": False,
        "rowsFrame": {"layout": "auto", "value": "batches/s"},
        "cellValues": {"unit": panel.unit},
        "yAxis": {"unit": "suffix: rows", "axisPlacement": "left", "reverse": False},
        "color": {
            "mode": "scheme",
            "scheme": "Turbo",
            "steps": 64,
            "exponent": 0.5,
            "fill": "blue",
        },
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": True},
        "cellGap": 1,
    }
