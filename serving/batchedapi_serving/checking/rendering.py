"""A report as text for a terminal; pure."""

from collections.abc import Sequence
from typing import Final

from batchedapi_serving.checking.advising import Advice
from batchedapi_serving.checking.report import MethodReport, Timing

BAR: Final = 30
"""Characters of the longest bar."""


def render_method(report: MethodReport, advice: Sequence[Advice]) -> str:
    """Everything about one method, ending with a line feed."""
    lines = [f"{report.name}"]
    if not report.samples:
        return f"{report.name}\n  not checked: {report.source}\n"
    if report.findings:
        lines += [f"  WRONG  {finding}" for finding in report.findings]
    elif report.batched:
        lines.append(
            f"  ok     {report.samples} rows ({report.source}) are answered the same alone, in"
            " batches, and in another order"
        )
    lines += [f"  {line}" for line in render_table(report.timings)]
    if report.line is not None:
        fixed, per_row = report.line.fixed, report.line.per_row
        lines.append(f"  t(n) = {1e3 * fixed:.3g} ms + {1e3 * per_row:.3g} ms * n")
    lines += [f"  {one.weight.value + ':':8} {one.text}" for one in advice]
    return "\n".join(lines) + "\n"


def render_table(timings: Sequence[Timing]) -> list[str]:
    """One line a size, with a bar as long as its rate; empty without sizes."""
    if not timings:
        return []
    best = max(timing.rows_per_second for timing in timings) or 1.0
    return [
        f"{'rows':>6} {'ms a batch':>11} {'ms a row':>9} {'rows/s':>9}",
        *(
            f"{t.rows:>6} {_ms(t.seconds):>11} {_ms(t.seconds / t.rows):>9}"
            f" {t.rows_per_second:>9.0f}  {'#' * max(1, round(BAR * t.rows_per_second / best))}"
            for t in timings
        ),
    ]


def _ms(seconds: float) -> str:
    """Milliseconds, with three digits that say something."""
    value = 1e3 * seconds
    return f"{value:.3f}" if value >= 0.1 else f"{value:#.3g}"  # noqa: PLR2004 - 0.100 has three
