"""Results of a tuning: a table for a terminal, a patch, one JSON object, and a picture.

The picture is a PNG, for which alone matplotlib is loaded; all else is pure.
"""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any, Final

import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import format_duration
from batchedapi_core.simulation import tuning
from batchedapi_serving.laptop.tuning.measuring import Measured, Step
from batchedapi_serving.laptop.tuning.run import TOLERANCE, Known, SettingRun

BAR: Final = 24
"""Characters of the longest bar."""


def render(known: Known) -> str:
    """Everything that is known, ending with a line feed."""
    target = format_duration(known.wanted.target)
    share = f"{100 * known.quantile:g} %"
    cpus = "1 CPU" if known.cpus == 1 else f"{known.cpus} CPUs"
    place = f"the replica runs on {cpus}, as spec.compute asks for {known.asked}, and the"
    place += " generator of the loads on others"
    if not known.cpus:
        place = f"spec.compute asks for {known.asked} CPUs: the replica and the generator of the"
        place += " loads share all there are"
    lines = [
        f"{known.name}: in time is an answer within {target}; a load is held where {share} are",
        f"requests of one row: {known.source}",
        place,
    ]
    if known.interrupted:
        lines.append("interrupted: this is what was known by then")
    for measured in known.measured:
        lines += ["", *_curve(measured)]
    best, runs = known.best_run, known.runs
    if runs:
        lines += ["", _HEAD, *(_setting(known, run, chosen=run is best) for run in runs)]
    if any(len(run.ladders) > 1 for run in runs):
        lines.append(
            "the best and the manifest's own ran twice: requests/s in the mean,"
            " all else of the second"
        )
    if any(run.ladder.comfortable and run.ladder.comfortable.answers.late for run in runs):
        lines.append("~ the generator was late at that load, and its lateness is in the p99")
    if not all(run.bounded for run in runs):
        lines.append("> the generator fell behind before the replica did: it may hold more")
    if known.own_run is not None:
        lines += ["", *_ladder(known.own_run)]
    if best is not None and best is not known.own_run:
        lines += ["", *_ladder(best)]
    lines += ["", *verdict(known)]
    return "\n".join(lines) + "\n"


def _curve(measured: Measured) -> list[str]:
    processes, threads, curve = measured.processes, measured.threads, measured.curve
    rates = [processes * threads * n / t for n, t in zip(curve.sizes, curve.seconds, strict=True)]
    best = max(rates)
    lanes = f"{processes} process{'' if processes == 1 else 'es'}"
    lanes += f" of {threads} thread{'' if threads == 1 else 's'}"
    return [
        f"t(n), {lanes}",
        f"{'rows':>6} {'ms a batch':>11} {'rows/s':>9}",
        *(
            f"{n:>6} {_ms(t):>11} {rate:>9,.0f}  {'#' * max(1, round(BAR * rate / best))}"
            for n, t, rate in zip(curve.sizes, curve.seconds, rates, strict=True)
        ),
    ]


_HEAD: Final = (
    f"{'':<22} {'maxBatch':>8} {'batch':>9} {'proc-':>6} {'threads':>7}"
    f" {'requests/s in time':>21} {'p99 ms at 80 % of it':>21}\n"
    f"{'':<22} {'Size':>8} {'Interval':>9} {'esses':>6} {'':>7}"
    f" {'expected':>10} {'measured':>10} {'expected':>10} {'measured':>10}"
)


def _setting(known: Known, run: SettingRun, *, chosen: bool) -> str:
    setting, ladder = run.setting, run.ladder
    step = ladder.comfortable
    late = "" if step is None or not step.answers.late else " ~"
    late += "" if run.bounded else " >"
    return (
        f"{run.label:<22} {known.manifest_size(setting):>8}"
        f" {format_duration(setting.batch_interval):>9} {setting.processes:>6}"
        f" {setting.threads:>7} {run.forecast.goodput:>10,.0f} {run.goodput:>10,.0f}"
        f" {_ms(run.p99):>10} {_ms(step.answers.p(0.99)) if step else '-':>10}"
        f"{late}{' <- best' if chosen else ''}"
    ).rstrip()


_LOADS: Final = (
    f"{'requests/s':>10} {'in time/s':>10} {'share':>7} {'p50 ms':>8} {'p99 ms':>8}"
    f" {'mean rows':>9} {'CPUs':>5}"
)


def _ladder(run: SettingRun) -> list[str]:
    lines = [f"loads, {run.label}", _LOADS]
    for step in run.ladder.steps:
        answers = step.answers
        knee = step is run.ladder.knee
        mark = "  generator late" if answers.late else "  knee" if knee else ""
        lines.append(
            f"{answers.rate:>10,.0f} {answers.goodput:>10,.0f} {answers.share_in_time:>7.1%}"
            f" {_ms(answers.p(0.5)):>8} {_ms(answers.p(0.99)):>8} {step.mean_rows:>9.3g}"
            f" {step.counted.cpu / step.seconds:>5.2f}{mark}"
        )
    return lines


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:.3g}"


def verdict(known: Known) -> list[str]:
    """Advice, in sentences."""
    best, own = known.best_run, known.own_run
    target = format_duration(known.wanted.target)
    lines = []
    if known.rule is not None:
        rows, interval = known.rule
        size = max(1, round(rows * known.size_of_row))
        lines.append(
            "By the rule of thumb, the rate of single rows times the longest wait that leaves time"
            f" for the batch: maxBatchSize {size}, batchInterval {format_duration(interval)}."
        )
    if known.undecided:
        lines.append(
            "Not decided: the generator fell behind, so that a setting may serve more than was"
            " seen. Run it on a machine with a free core, or with a longer --step."
        )
    elif best is None:
        if known.runs:
            lines.append(
                f"No load was held within {target}: raise --slo, or use a faster model or device."
            )
        elif (expected := known.expected_best) is not None:
            lines.append(
                f"Expected best, not run: {_values(known, expected.setting)},"
                f" {expected.goodput:,.0f} requests/s within {target}."
            )
    elif own is None or best is own:
        lines.append(
            f"The manifest is within {TOLERANCE:.0%} of the best that was found:"
            f" {best.goodput:,.0f} requests/s within {target}."
        )
    else:
        instead = own.goodput
        least = "" if best.bounded else "at least "
        lines.append(
            f"Better: {_values(known, best.setting)}, {least}{best.goodput:,.0f} requests/s"
            f" within {target} instead of {instead:,.0f}."
        )
    if best is not None and best.ladder.knee is not None:
        lines += _notes(best.ladder.knee)
    return lines


def _notes(knee: Step) -> list[str]:
    cpus = knee.counted.cpu / knee.seconds
    web = knee.counted.web_cpu / knee.seconds
    lines = [f"At that load the replica used {cpus:.2f} CPUs; compute.cpu has to ask for as much."]
    if web > 0.8:  # noqa: PLR2004 - of a core: it is what limits
        lines.append(
            f"Its web process used {web:.0%} of a core: webProcesses may be what limits it."
        )
    return lines


def _values(known: Known, setting: tuning.Candidate) -> str:
    changes = known.changes(setting)
    said = [f"{name} {value}" for fields in changes.values() for name, value in fields.items()]
    return ", ".join(said) or "as the manifest says"


def better(known: Known) -> dict[str, dict[str, Any]]:
    """Changes of `spec`; {} if nothing was found that is better."""
    best = known.best_run
    if best is not None and not known.undecided:
        return known.changes(best.setting)
    expected = None if known.runs else known.expected_best
    return {} if expected is None else known.changes(expected.setting)


def patch(known: Known) -> str:
    """The same as a patch in YAML, for kubectl and kustomize; "" if nothing is to be changed."""
    changes = better(known)
    if not changes:
        return ""
    document = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": known.name},
        "spec": changes,
    }
    said = "".join(f"# {line}\n" for line in verdict(known))
    return said + yaml.safe_dump(document, sort_keys=False)


def as_object(known: Known) -> dict[str, Any]:
    """For `--json`; durations in seconds, null where nothing was answered."""
    best = known.best_run
    return {
        "name": known.name,
        "slo": known.wanted.target,
        "quantile": known.quantile,
        "interrupted": known.interrupted,
        "undecided": known.undecided,
        "cpus": known.cpus or None,
        "curves": [
            {"processes": m.processes, "threads": m.threads, "rows": m.curve.sizes,
             "seconds": m.curve.seconds}
            for m in known.measured
        ],
        "batches_under_load_take_times_longer": known.slower,
        "rule_of_thumb": None if known.rule is None else {
            "rows": known.rule[0], "batch_interval": known.rule[1]
        },
        "simulated": [_forecast(known, one) for one in known.forecasts],
        "runs": [_run(known, run) for run in known.runs],
        "best": None if best is None else _run(known, best),
        "change": better(known),
    }  # fmt: skip


def _forecast(known: Known, one: tuning.Forecast) -> dict[str, Any]:
    setting = one.setting
    return {
        "max_batch_size": known.manifest_size(setting),
        "batch_interval": setting.batch_interval,
        "processes": setting.processes,
        "threads": setting.threads,
        "expected_goodput": one.goodput,
        "expected_p99": _number(one.p99),
    }


def _run(known: Known, run: SettingRun) -> dict[str, Any]:
    step = run.ladder.comfortable
    return {
        **_forecast(known, run.forecast),
        "label": run.label,
        "expected_p99": _number(run.p99),
        "goodput": run.goodput,
        "goodputs": [ladder.goodput for ladder in run.ladders],
        "p99": None if step is None else _number(step.answers.p(0.99)),
        "p99_at": None if step is None else step.answers.rate,
        "p99_generator_late": None if step is None else step.answers.late,
        "bounded": run.bounded,
        "loads": [
            {
                "rate": one.answers.rate,
                "goodput": one.answers.goodput,
                "in_time": one.answers.share_in_time,
                "p50": _number(one.answers.p(0.5)),
                "p99": _number(one.answers.p(0.99)),
                "mean_rows": one.mean_rows,
                "cpus": one.counted.cpu / one.seconds,
                "generator_late": one.answers.late,
            }
            for one in run.ladder.steps
        ],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def as_json(known: Known) -> str:
    """Text of `as_object`, ending with a line feed."""
    return json.dumps(as_object(known), indent=2) + "\n"


REMEDY: Final = (
    "--picture draws with matplotlib, which is not installed; it comes with:"
    " pip install 'batchedapi[tune]'"
)
_INCHES: Final = (13.0, 4.2)
_DOTS: Final = 120  # per inch


def can_draw() -> bool:
    """Whether matplotlib is there; nothing is loaded."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(known: Known, path: Path) -> None:
    """t(n), what was answered in time at each load, and p99, side by side.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    curves, goodput, p99 = figure.subplots(1, 3)
    for one in known.measured:
        curves.plot(
            one.curve.sizes, [1e3 * t for t in one.curve.seconds], marker="o",
            label=f"{one.processes} x {one.threads}",
        )  # fmt: skip
    curves.set(title="t(n)", xlabel="rows of a batch", ylabel="ms", xscale="log", yscale="log")
    for run in known.runs:
        steps = [step.answers for step in run.ladder.steps]
        loads, setting = [one.rate for one in steps], run.setting
        name = (
            f"{known.manifest_size(setting)}, {format_duration(setting.batch_interval)},"
            f" {setting.processes} x {setting.threads}: {run.label}"
        )
        (line,) = goodput.plot(loads, [one.goodput for one in steps], marker="o", label=name)
        goodput.axvline(run.forecast.goodput, color=line.get_color(), linestyle=":", alpha=0.6)
        p99.plot(loads, [1e3 * one.p(0.99) for one in steps], marker="o", label=name)
    p99.axhline(1e3 * known.wanted.target, color="black", linestyle=":")
    goodput.set(
        title=f"answered within {format_duration(known.wanted.target)} (dotted: expected knee)",
        xlabel="requests/s sent", ylabel="requests/s in time",
    )  # fmt: skip
    p99.set(title="p99", xlabel="requests/s sent", ylabel="ms", yscale="log")
    for axes in (curves, goodput):
        if axes.lines:
            axes.legend(fontsize="small")
    figure.suptitle(known.name)
    figure.savefig(path, format="png", dpi=_DOTS)
