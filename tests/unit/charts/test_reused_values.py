"""`helm upgrade --reuse-values`: the templates get the earlier chart's values, and no others."""

import copy
import functools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from chart import CHART, ROOT, helm

Values = dict[str, Any]

VALUES: Final = "charts/batchedapi/values.yaml"
ASKED: Final = (
    "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboards.enabled=true",
    "networkPolicies.enabled=true", "exposure.gateway=true", "exposure.ingress=true",
)  # fmt: skip
"""What somebody upgrades for: all that is off by default."""


@functools.cache
def default_values() -> Values:
    """The default values of the chart as it is."""
    return dict(yaml.safe_load((ROOT / VALUES).read_text(encoding="utf-8")))


def paths(values: Values) -> Iterator[tuple[str, ...]]:
    """Each value and each group of values."""
    for name, value in values.items():
        yield (name,)
        for inner in value if isinstance(value, dict) else ():
            yield name, inner


def may_be_none(path: tuple[str, ...]) -> bool:
    """A list or an object in a group that has something in it by default: null takes it away."""
    value: Any = default_values()
    for name in path:
        value = value[name]
    return len(path) > 1 and isinstance(value, dict | list) and bool(value)


def rendered(chart: Path, settings: Sequence[str], values: Path | None = None) -> str:
    """The chart's rendered objects, as text."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    files = [] if values is None else ["--values", str(values)]
    result = helm("template", "batchedapi", str(chart), "-n", "system", *files, *flags)
    assert not result.returncode, result.stderr
    return result.stdout


@functools.cache
def with_all_values(settings: tuple[str, ...]) -> str:
    """The chart as it is, rendered with these settings."""
    return rendered(CHART, settings)


@pytest.fixture(scope="module")
def without_values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the chart in which helm finds what `reused` writes there."""
    return shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / "batchedapi")


def reused(chart: Path, values: Values, settings: Sequence[str]) -> tuple[str, str]:
    """Rendered with those values in place of the chart's, and with them on top of the chart's."""
    text = yaml.safe_dump(values)
    (chart / "values.yaml").write_text(text, encoding="utf-8")
    given = chart.parent / "given.yaml"
    given.write_text(text, encoding="utf-8")
    return rendered(chart, settings), rendered(CHART, settings, given)


def test_the_chart_renders_without_any_values_as_with_its_own(without_values: Path) -> None:
    """A chart of before there were values is the oldest that there can be."""
    alone, with_defaults = reused(without_values, {}, ())

    assert with_defaults == alone


def emptied() -> Values:
    """The groups of the chart's values, each without what may be missing in it."""
    values = copy.deepcopy(default_values())
    for path in paths(default_values()):
        if path[1:] and not may_be_none(path):
            del values[path[0]][path[1]]
    return values


@pytest.mark.parametrize("values", [{}, emptied()], ids=["no groups", "empty groups"])
def test_values_that_the_earlier_chart_did_not_have_have_their_defaults(
    values: Values, without_values: Path
) -> None:
    """A template that reads a member of a missing group ends the upgrade with a nil pointer."""
    (without_values / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    assert with_all_values(ASKED) == rendered(without_values, ASKED)


@pytest.mark.parametrize(
    "path", [one for one in paths(default_values()) if may_be_none(one)], ids=".".join
)
def test_a_list_or_an_object_that_null_took_away_stays_away(path: tuple[str, ...]) -> None:
    """So one gets rid of a default with Helm: of a limit, or of whoever may read metrics."""
    ours = rendered(CHART, (*ASKED, f"{'.'.join(path)}=null"))

    assert rendered(CHART, ASKED) != ours


def test_values_of_each_earlier_commit_are_taken_over(without_values: Path) -> None:
    """Any of them may be installed; the guide to monitoring says how values are reused."""
    command = ["git", "-C", str(ROOT), "log", "--format=%h", "--", VALUES]
    log = subprocess.run(command, capture_output=True, text=True, check=False)
    if log.returncode:
        pytest.skip("no checkout of git: what the values were is not known")

    for commit in log.stdout.split():
        show = ["git", "-C", str(ROOT), "show", f"{commit}:{VALUES}"]
        text = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        alone, with_defaults = reused(without_values, yaml.safe_load(text), ASKED)
        assert with_defaults == alone, commit


def test_a_name_that_a_value_had_does_not_stop_who_writes_the_new_one() -> None:
    """With --reuse-values the old one cannot be taken out of a file, only overruled."""
    settings = ("watchNamespace=team-a", "watchNamespaces={team-a}")

    assert rendered(CHART, settings[1:]) == rendered(CHART, settings)


def test_each_template_that_reads_values_completes_them_first() -> None:
    """Helm renders files of one folder in no certain order: none may count on another."""
    files = [one for one in (CHART / "templates").rglob("*.*") if one.name != "_helpers.tpl"]
    reading = [one for one in files if ".Values" in one.read_text(encoding="utf-8")]

    first = {one.name: one.read_text(encoding="utf-8").splitlines()[0] for one in reading}

    assert first
    assert {'{{- include "batchedapi.complete" . -}}'} == set(first.values())
