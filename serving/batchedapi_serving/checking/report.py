"""What a check found; crosses processes, and is what `--json` prints."""

import dataclasses
import json
from typing import Any, Final

from batchedapi_core.service_model import ServiceTime

REPORT_FILE: Final = "check.json"
"""In the runtime folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Batches of one size."""

    rows: int
    seconds: float
    """Median of a batch."""
    runs: int

    @property
    def rows_per_second(self) -> float:
        """Of one lane with batches of this size."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class MethodReport:
    """Of one method."""

    name: str
    batched: bool
    max_batch_size: int
    samples: int
    """Rows that it was asked with; 0: nobody knows what it takes, so nothing was checked."""
    source: str
    """Where they come from."""
    findings: tuple[str, ...]
    """What is wrong, a sentence each."""
    timings: tuple[Timing, ...]
    """Ascending in rows."""
    line: ServiceTime | None
    """t(n) fitted through every batch; None: too few."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Of a predictor."""

    name: str
    methods: tuple[MethodReport, ...]
    memory: int
    """Bytes that the process had at most."""

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return not any(method.findings for method in self.methods)

    @property
    def checked(self) -> bool:
        """Something was asked."""
        return any(method.samples for method in self.methods)

    def to_json(self) -> dict[str, Any]:
        """JSON object that `from_json` takes back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The reverse of `to_json`."""
        value = json.loads(text)
        methods = tuple(
            MethodReport(
                **{
                    **method,
                    "findings": tuple(method["findings"]),
                    "timings": tuple(Timing(**timing) for timing in method["timings"]),
                    "line": None if method["line"] is None else ServiceTime(**method["line"]),
                }
            )
            for method in value["methods"]
        )
        return cls(value["name"], methods, value["memory"])
