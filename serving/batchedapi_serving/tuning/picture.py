"""What a tuning found, as a PNG; matplotlib is loaded here alone."""

import importlib.util
from pathlib import Path
from typing import Final

from batchedapi_core.manifest import format_duration
from batchedapi_serving.tuning.run import Known

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
