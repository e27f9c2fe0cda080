"""What a check found; crosses processes, and is what `--json` prints."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from batchedapi_core.service_model import ServiceTime

ROWS: Final = "rows"
REPORT_FILE: Final = "check.json"
"""In the runtime folder."""
_WANTED_FILE: Final = "wanted.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a check; `read` takes what `write` left in the runtime folder."""

    items: Sequence[Any] | None
    """Rows as JSON; None: those that the method suggests."""
    ignored: Sequence[str] = ()
    """Outputs, and members of JSON answers, that are not compared."""

    def write(self, runtime: Path) -> None:
        """Leave it for the process that checks."""
        (runtime / _WANTED_FILE).write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, runtime: str) -> "Wanted":
        """What was left."""
        return cls(**json.loads((Path(runtime) / _WANTED_FILE).read_text()))


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Batches of one size."""

    rows: int
    seconds: float
    """Median of a batch."""
    runs: int
    size: int
    """Of such a batch, as `maxBatchSize` counts: its rows, or what they cost."""

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
    unit: str = ROWS
    """What `maxBatchSize` counts: ROWS, or what one unit of `size_of` is, in words."""


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
