"""`batchedapi simulate`: the real command, its exit codes, and what a pipeline reads of it."""

import json
import subprocess
from pathlib import Path

import pytest

from batchedapi_core import contract
from serving import PROGRAM, write_manifest

OPTIONS = (
    "--service", "a=25ms,b=5ms", "--max-batch-size", "32", "--batch-interval", "20ms",
    "--max-latency", "500ms", "--startup", "20s..60s", "--min-replicas", "1",
    "--max-replicas", "20", "--seed", "3",
)  # fmt: skip
STEP = "t,rate\n0,100\n100,500\n300,100\n600,0\n"


def simulate(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run(
        [str(PROGRAM), "simulate", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def trace_of(folder: Path, text: str) -> str:
    """A file with it."""
    file = folder / "trace"
    file.write_text(text)
    return str(file)


def test_every_option_and_every_key(tmp_path: Path) -> None:
    """The same arguments print the same bytes."""
    trace = trace_of(tmp_path, STEP)

    first, again = (simulate(tmp_path, "--trace", trace, *OPTIONS, "--json") for _ in range(2))

    assert 0 == first.returncode, first.stderr
    assert first.stdout == again.stdout
    value = json.loads(first.stdout)
    assert {"miss_fraction", "cost_ratio", "p50", "p99", "scale_events", "replicas"} <= set(value)
    assert 0 <= value["miss_fraction"] < 0.2
    assert 1 <= value["cost_ratio"] < 3
    assert 0.030 < value["p50"] <= value["p99"] < 2
    assert value["scale_events"] >= 2
    for t, ready, desired, reason in value["replicas"]:
        assert 0 < t <= 600
        assert 0 <= ready <= 20
        assert 1 <= desired <= 20
        assert reason
    assert "20s..1m" == value["settings"]["start-up of a replica"]["value"]


def test_an_assertion_that_fails_is_exit_code_1_and_a_sentence(tmp_path: Path) -> None:
    """F11: capacity is tested in CI."""
    trace = trace_of(tmp_path, STEP)

    good = simulate(tmp_path, "--trace", trace, *OPTIONS, "--assert", "p99<10s",
                    "--assert", "replicas<=20")  # fmt: skip
    bad = simulate(tmp_path, "--trace", trace, *OPTIONS, "--assert", "p99<10s",
                   "--assert", "p50<1ms")  # fmt: skip

    assert 0 == good.returncode, good.stderr
    assert "" == good.stderr
    assert "replicas asked for" in good.stdout
    assert "it was simulated with" in good.stdout
    assert 1 == bad.returncode
    assert "batchedapi: --assert p50<1ms does not hold: p50 is " in bad.stderr
    assert good.stdout == bad.stdout


def test_a_manifest_with_recorded_requests(tmp_path: Path) -> None:
    """The file that is applied, ConfigMap and all, and what `serve --record` wrote."""
    manifest = write_manifest(
        tmp_path,
        "class Model: pass",
        {
            "serverSideBatching": {"maxBatchSize": 8, "maxLatency": "100ms"},
            "autoscaling": {"maxReplicas": 3, "behavior": {"scaleUp": {"tolerance": "0.1"}}},
        },
    )
    lines = (json.dumps({"t": 0.01 * i, "rows": 1 + i % 2, "shape": "x"}) for i in range(3000))
    trace = trace_of(tmp_path, "\n".join(lines))

    done = simulate(tmp_path, "-f", str(manifest), "--trace", trace, "--service", "a=10ms,b=0.2ms",
                    "--json")  # fmt: skip

    assert 0 == done.returncode, done.stderr
    value = json.loads(done.stdout)
    assert 3000 == value["requests"]
    assert {"value": "8", "from": "manifest"} == (
        value["settings"]["serverSideBatching.maxBatchSize"]
    )
    assert sum(int(rows) * count for rows, count in value["batch_rows"].items()) == 4500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "`batchedapi check -f FILE` measures it"),
        (("--service", "a=1"), "--service: expected a=DURATION,b=DURATION"),
        (("--service", "a=1ms,b=1ms", "--max-latency", "5"), "--max-latency: expected a duration"),
        (("--service", "a=1ms,b=1ms", "--startup", "9s..1s"), "--startup: expected the shorter"),
        (("--service", "a=1ms,b=1ms", "--assert", "p99"), "--assert: expected a quantity"),
        (("--service", "a=1ms,b=1ms", "--min-replicas", "200"), "minReplicas must be <= "),
        (("--service", "a=1ms,b=1ms", "--max-batch-size", "0"), "0 is not in the range"),
    ],
)
def test_bad_input_is_exit_code_2_with_its_place(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """The message names the expected and the actual value, without a traceback."""
    done = simulate(tmp_path, "--trace", trace_of(tmp_path, STEP), *arguments)

    assert 2 == done.returncode
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "" == done.stdout


def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    """The file, and where in it."""
    bad = tmp_path / "bad.csv"
    bad.write_text("0,5\nx,5\n")
    manifest = tmp_path / "api.yaml"
    manifest.write_text(
        f"kind: {contract.KIND}\napiVersion: {contract.API_VERSION}\nmetadata: {{name: a}}\n"
        "spec: {predictor: {path: 'm:M'}, autoscaling: {window: 15s}}\n"
    )
    other = tmp_path / "other.yaml"
    other.write_text("apiVersion: v1\nkind: Pod\n")
    trace, service = trace_of(tmp_path, STEP), ("--service", "a=1ms,b=1ms")

    results = [
        simulate(tmp_path, "--trace", str(bad), *service),
        simulate(tmp_path, "--trace", trace, *service, "-f", str(manifest)),
        simulate(tmp_path, "--trace", trace, *service, "-f", str(other)),
        simulate(tmp_path, "--trace", str(tmp_path / "none"), *service),
    ]

    assert [2, 2, 2, 2] == [done.returncode for done in results]
    assert f"--trace {bad}: line 2: expected t,rate" in results[0].stderr
    assert f"{manifest}: spec.autoscaling.window must be a multiple" in results[1].stderr
    assert f"{other}: expected a BatchedAPI document, got Pod" in results[2].stderr
    assert "does not exist" in results[3].stderr


def test_a_million_arrivals_are_no_trouble(tmp_path: Path) -> None:
    """F11: short enough for every pull request (tests/bench/results/simulation_speed.md)."""
    trace = trace_of(tmp_path, "0,1000\n1000,0\n")

    done = simulate(tmp_path, "--trace", trace, *OPTIONS, "--json")

    assert 0 == done.returncode, done.stderr
    assert 1_000_000 == pytest.approx(json.loads(done.stdout)["requests"], rel=0.01)
