"""Write every generated file, or say which of them differ from what is on disk.

python crds/generate.py           # make generate
python crds/generate.py --check   # make verify: exit 1 and a diff when something is out of date
"""

import argparse
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# This file's own folder, which Python puts there for a program, would hide the standard `resource`.
sys.path[:] = [
    str(ROOT),
    *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "crds"),
]

# The path above makes this file runnable as a program from anywhere.
from crds import (  # noqa: E402 - found only with the path above
    alerts,
    chart_values,
    command_line,
    conditions,
    dashboards,
    grafana,
    metrics,
    python_api,
    recommendations,
    reference,
    resource,
)

CHART: Final = "charts/batchedapi"
_DIFF_LINES: Final = 20
"""Of each differing file; enough to see what changed without flooding a CI log."""


def generated_files() -> dict[str, str]:
    """Content of every generated file by its path below the repository's root."""
    return {
        "crds/batchedapis.yaml": resource.crd_yaml(),
        f"{CHART}/templates/crd.yaml": resource.crd_template(),
        f"{CHART}/values.yaml": chart_values.values_yaml(),
        f"{CHART}/values.schema.json": chart_values.values_schema(),
        f"{CHART}/templates/_defaults.tpl": chart_values.defaults_template(),
        **{
            f"{CHART}/dashboards/{name}.json": grafana.dashboard_json(page)
            for name, page in dashboards.DASHBOARDS.items()
        },
        f"{CHART}/rules/batchedapi.yaml": alerts.rules_yaml(),
        "docs/reference/alerts.md": alerts.page(),
        "docs/reference/batchedapi.md": reference.page(),
        "docs/reference/command-line.md": command_line.page(),
        "docs/reference/conditions.md": conditions.page(),
        "docs/reference/metrics.md": metrics.page(),
        "docs/reference/prometheus.yaml": metrics.scrape_yaml(),
        "docs/reference/python.md": python_api.page(),
        "docs/reference/recommendations.md": recommendations.page(),
        "docs/reference/values.md": chart_values.page(),
    }


def differences(root: Path, files: Mapping[str, str]) -> list[str]:
    """One summary for each file whose content on disk is not the generated one."""
    summaries = []
    for name, wanted in files.items():
        path = root / name
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found != wanted:
            lines = list(
                difflib.unified_diff(
                    found.splitlines(),
                    wanted.splitlines(),
                    f"{name} (on disk)",
                    f"{name} (generated)",
                    lineterm="",
                    n=1,
                )
            )
            more = [f"... {len(lines) - _DIFF_LINES} more lines"][: len(lines) > _DIFF_LINES]
            summaries.append("\n".join([*lines[:_DIFF_LINES], *more]))
    return summaries


def main(arguments: list[str]) -> int:
    """Exit code: 0 = written, or nothing differs; 1 = `--check` found a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds the files")
    options = parser.parse_args(arguments)
    files = generated_files()
    if options.check:
        summaries = differences(options.root, files)
        for summary in summaries:
            sys.stderr.write(f"{summary}\n\n")
        if summaries:
            sys.stderr.write(f"{len(summaries)} generated files are out of date: make generate\n")
        return 1 if summaries else 0
    for name, content in files.items():
        path = options.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
