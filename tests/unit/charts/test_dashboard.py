"""The dashboards that the chart ships: complete panels, queries that parse, names that exist."""

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

PAGES: Final = {name: dashboards.load(name) for name in dashboards.NAMES}
GRAPHS: Final = [panel for page in PAGES.values() for panel in dashboards.graphs(page)]
QUERIES: Final = dashboards.queries()
OFFERED: Final = {
    "api": {"datasource", "namespace", "name", "method"},
    "autoscaling": {"datasource", "namespace", "name"},
    "fleet": {"datasource", "namespace"},
    "operator": {"datasource"},
}
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
    first = dashboards.graphs(PAGES["api"])[0]

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


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_panels_do_not_overlap_and_fit_the_grid(name: str) -> None:
    """Grafana moves overlapping panels about, differently on each save."""
    cells = [
        {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        for grid in (panel["gridPos"] for panel in PAGES[name]["panels"])
    ]

    assert all(x < 24 for covered in cells for x, _ in covered)
    assert not any(one & other for one, other in combinations(cells, 2))


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_panel_ids_and_titles_are_unique(name: str) -> None:
    """Links to a panel go by its id, people by its title."""
    ids = [panel["id"] for panel in PAGES[name]["panels"]]
    titles = [panel["title"] for panel in dashboards.graphs(PAGES[name])]

    assert len(ids) == len(set(ids))
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_names_published_metrics_only(query: dashboards.PanelQuery) -> None:
    """A metric that was renamed would leave the panel empty without a word."""
    names = {SERIES_SUFFIX.sub("", name) for name in NAME.findall(query.expr)}

    assert names
    assert set() == names - PUBLISHED


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_queries_use_the_variables_that_the_dashboard_offers(name: str) -> None:
    """An unknown variable is sent to Prometheus as text and matches nothing."""
    offered = {variable["name"] for variable in PAGES[name]["templating"]["list"]}

    used = {one for query in dashboards.queries(name) for one in dashboards.variables(query.expr)}

    assert OFFERED[name] == offered
    assert offered - {"datasource"} | {"__rate_interval"} == used


def test_every_dashboard_has_an_address_of_its_own() -> None:
    """Grafana would show the last one of two with the same."""
    assert len(PAGES) == len({page["uid"] for page in PAGES.values()})


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
