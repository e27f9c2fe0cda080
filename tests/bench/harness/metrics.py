"""Changes of a replica's counters in a run."""

import http
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from harness.rounds import quotient
from harness.servers import ask

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]


class BatchDelta(NamedTuple):
    """Batches between two readings."""

    batches: float
    rows: float
    full: float
    """Batches released because they were full."""

    @property
    def mean(self) -> float:
        """Rows of a batch; infinite if there was none."""
        return quotient(self.rows, self.batches)


def parse(page: str) -> Samples:
    """Every sample of an exposition page by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def read(admin_port: int) -> Samples:
    """The replica's counters now.

    Raises:
        OSError: no answer.
        RuntimeError: an answer that is not 200.
    """
    status, body = ask(admin_port, contract.PATH_METRICS, None)
    if status != http.HTTPStatus.OK:
        raise RuntimeError(f"{contract.PATH_METRICS}: expected 200, got {status}: {body[:200]!r}")
    return parse(body.decode())


def total(samples: Samples, name: str, **labels: str) -> float:
    """Sum of all samples of `name` that carry `labels`.

    Raises:
        KeyError: there are none.
    """
    wanted = labels.items()
    found = [v for (n, have), v in samples.items() if n == name and wanted <= set(have)]
    if not found:
        raise KeyError(f"{name}{labels or ''}: no such sample on the metrics page")
    return sum(found)


def change(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """How much the samples of `name` that carry `labels` grew.

    Raises:
        KeyError: there are none.
    """
    return total(after, name, **labels) - total(before, name, **labels)


def batch_delta(before: Samples, after: Samples) -> BatchDelta:
    """Batches between two readings, by the histogram of their sizes."""
    return BatchDelta(
        change(before, after, f"{contract.METRIC_BATCH_ROWS}_count"),
        change(before, after, f"{contract.METRIC_BATCH_ROWS}_sum"),
        change(before, after, contract.METRIC_BATCHES, reason="full"),
    )


def model_restarts(samples: Samples) -> int:
    """Model processes replaced so far."""
    return int(total(samples, contract.METRIC_PROCESS_RESTARTS, role="model"))
