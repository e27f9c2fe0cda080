"""The dashboard that the chart ships: complete panels, queries that parse, names that exist."""

import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import dashboards
import prometheus
from batchedapi_core import contract

DASHBOARD: Final = dashboards.load()
GRAPHS: Final = dashboards.graphs(DASHBOARD)
QUERIES: Final = dashboards.queries(DASHBOARD)
VALUES: Final = {"namespace": "n", "name": "a", "method": ".*", "__rate_interval": "1m"}
NAME: Final = re.compile(r"\b(?:batchedapi|process)_\w+")
SERIES_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count)$")

PUBLISHED: Final = {
    value
    for name, value in vars(contract).items()
    if name.startswith(("METRIC_", "OPERATOR_")) and isinstance(value, str)
}


def by_title(panel: dict[str, Any]) -> str:
    """The id of a parametrized test."""
    return str(panel["title"])


def test_the_batch_size_heatmap_comes_first() -> None:
    """How well batches fill is what this product is about: it is seen without scrolling."""
    first = GRAPHS[0]

    assert ("heatmap", "Batch size") == (first["type"], first["title"])
    assert contract.METRIC_BATCH_ROWS in first["targets"][0]["expr"]


@pytest.mark.parametrize("panel", GRAPHS, ids=by_title)
def test_a_panel_has_source_unit_description_and_query(panel: dict[str, Any]) -> None:
    """A graph without a unit is guessed at; one without a description is not acted on."""
    assert {"type": "prometheus", "uid": "${datasource}"} == panel["datasource"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len(panel["description"]) > 60
    assert panel["targets"]
    for target in panel["targets"]:
        assert panel["datasource"] == target["datasource"]
        assert target["legendFormat"]


def test_panels_do_not_overlap_and_fit_the_grid() -> None:
    """Grafana moves overlapping panels about, differently on each save."""
    cells = [
        {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        for grid in (panel["gridPos"] for panel in DASHBOARD["panels"])
    ]

    assert all(x < 24 for covered in cells for x, _ in covered)
    assert not any(one & other for one, other in combinations(cells, 2))


def test_panel_ids_and_titles_are_unique() -> None:
    """Links to a panel go by its id, people by its title."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in GRAPHS]

    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_names_published_metrics_only(query: dashboards.PanelQuery) -> None:
    """A metric that was renamed would leave the panel empty without a word."""
    names = {SERIES_SUFFIX.sub("", name) for name in NAME.findall(query.expr)}

    assert names
    assert set() == names - PUBLISHED


def test_queries_use_variables_that_the_dashboard_offers() -> None:
    """An unknown variable is sent to Prometheus as text and matches nothing."""
    offered = {variable["name"] for variable in DASHBOARD["templating"]["list"]}

    used = {name for query in QUERIES for name in dashboards.variables(query.expr)}

    assert {"datasource", "namespace", "name", "method"} == offered
    assert {"namespace", "name", "method", "__rate_interval"} == used


def test_every_query_parses(tmp_path: Path) -> None:
    """Checked by Prometheus' own parser, as recording rules of one file."""
    try:
        promtool = prometheus.program("promtool")
    except prometheus.PrometheusUnavailableError as error:
        pytest.skip(str(error))
    rules = [
        {"record": f"query:{number}", "expr": dashboards.substitute(query.expr, VALUES)}
        for number, query in enumerate(QUERIES)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    result = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, timeout=30, check=False
    )

    assert not result.returncode, result.stdout + result.stderr
    assert f"SUCCESS: {len(QUERIES)} rules found" in result.stdout
