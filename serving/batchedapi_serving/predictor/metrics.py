"""A predictor's own metrics: `context.metrics`.

    self.words = context.metrics.counter("words", "Words that were read.", ["language"])
    self.words.labels("en").inc(12)

Names and methods are prometheus-client's. Series are bounded here; where values are kept is the
server's affair, so that a unit test needs none.
"""

import contextlib
import itertools
import logging
import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from batchedapi_core import contract

log = logging.getLogger(__name__)

MOST_METRICS: Final = 100
"""Names of one predictor."""
MOST_SERIES: Final = 1000
"""Most in one model process: a counter or gauge is one for each combination of labels, a
histogram as many as it has buckets, and its sum."""
LONGEST_LABEL: Final = 128
"""Characters of a label's value; what is longer is cut."""
MERGES: Final = ("sum", "max", "min", "mostrecent")
"""Ways to merge a gauge that several processes set."""
LONGEST_TEXT: Final = 1000
"""Characters of what documents a metric; each of its series keeps them."""
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,199}")
RESERVED: Final = ("batchedapi_", "process_")
"""Beginnings of the names on a replica's own page."""


class KeptNumber(NamedTuple):
    """One number that is kept; of a histogram, of one bucket (not cumulative) or the sum."""

    kind: str
    """counter, histogram, or gauge and how it is merged: gauge_sum."""
    family: str
    """Name of the metric; a counter's without `_total`."""
    sample: str
    """Name on the page."""
    labels: tuple[tuple[str, str], ...]
    """Names and values, in the order of names."""
    documentation: str


class Values(Protocol):
    """Where the numbers are kept; asked under a lock."""

    def opened(self, kind: str) -> Iterable[KeptNumber]:
        """Numbers of that kind that are kept already, by the process that this one replaces."""

    def add(self, series: KeptNumber, amount: float) -> None:
        """To a number that is 0 at first."""

    def put(self, series: KeptNumber, value: float) -> None:
        """In place of what was there."""


class InMemory(dict[KeptNumber, float]):
    """Values of a process whose page nobody reads: a unit test's."""

    def opened(self, kind: str) -> Iterable[KeptNumber]:
        """See Values."""
        return [series for series in self if series.kind == kind]

    def add(self, series: KeptNumber, amount: float) -> None:
        """See Values."""
        self[series] = self.get(series, 0.0) + amount

    def put(self, series: KeptNumber, value: float) -> None:
        """See Values."""
        self[series] = value


class Book:
    """Owner of the values of one process, and of the limit on series."""

    def __init__(self, open_values: Callable[[], Values]) -> None:
        self._open = open_values
        self._values: Values | None = None
        self._kept: set[KeptNumber] = set()
        self._kinds: set[str] = set()
        self._lock = threading.Lock()
        self._told = False

    def take(self, several: Sequence[KeptNumber]) -> bool:
        """Make room for all of them, each 0 unless it is kept already; False: there is none."""
        try:
            with self._lock:
                return self._taken(self._opened(), several)
        except OSError as error:  # a full disk costs a metric, and nobody's request
            self._tell("context.metrics: a metric cannot be kept", error=repr(error))
            return False

    def _opened(self) -> Values:
        if self._values is None:
            values = self._open()
            values.add(_DROPPED, 0.0)  # while there is room
            self._values = values
        return self._values

    def _taken(self, values: Values, several: Sequence[KeptNumber]) -> bool:
        kind = several[0].kind
        if kind not in self._kinds:
            self._kept.update(set(values.opened(kind)) - {_DROPPED})
            self._kinds.add(kind)
        new = [series for series in several if series not in self._kept]
        if new and len(self._kept) + len(new) > MOST_SERIES:
            return False
        for series in new:
            values.add(series, 0.0)
        self._kept.update(new)
        return True

    def add(self, amounts: Sequence[tuple[KeptNumber, float]]) -> None:
        """To series that were taken."""
        with self._lock:
            if self._values is not None:
                for series, amount in amounts:
                    self._values.add(series, amount)

    def put(self, series: KeptNumber, value: float) -> None:
        """To a series that was taken."""
        with self._lock:
            if self._values is not None:
                self._values.put(series, value)

    def drop(self, name: str) -> None:
        """An update of a metric for which there is no room."""
        with self._lock, contextlib.suppress(OSError):  # then it is told, and not counted
            self._opened().add(_DROPPED, 1.0)
        self._tell(
            "context.metrics: too many series; what is beyond is dropped, and counted in"
            f" {contract.METRIC_PREDICTOR_UPDATES_DROPPED}",
            metric=name,
            most_series=MOST_SERIES,
            most_metrics=MOST_METRICS,
        )

    def _tell(self, what: str, **facts: object) -> None:
        """One line a process, of whatever is dropped first."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            log.warning(what, extra=facts)


def _text(value: object, most: int) -> str:
    """Text for the page: it is UTF-8, in which there is no half of a surrogate."""
    return str(value)[:most].encode("utf-8", "replace").decode()


_DROPPED: Final = KeptNumber(
    "counter",
    contract.METRIC_PREDICTOR_UPDATES_DROPPED.removesuffix("_total"),
    contract.METRIC_PREDICTOR_UPDATES_DROPPED,
    (),
    "",
)
"""It always has room."""


class _Declared(NamedTuple):
    """A metric as it was asked for; asked for again, it is the same."""

    kind: str
    name: str
    documentation: str
    labelnames: tuple[str, ...]
    buckets: tuple[float, ...] = ()


class _Metric:
    """One metric; with labels, one combination of them, or all of those together."""

    def __init__(
        self, book: Book, declared: _Declared, values: tuple[str, ...] = (), *, room: bool = True
    ) -> None:
        self._book = book
        self._declared = declared
        self._room = room
        self._whole = len(values) == len(declared.labelnames)
        self._children: dict[tuple[str, ...], Self] = {}
        self._series: tuple[KeptNumber, ...] = ()
        if room and self._whole:
            labels = tuple(sorted(zip(declared.labelnames, values, strict=True)))
            self._series = self._numbers(labels)
            self._room = book.take(self._series)

    def labels(self, *values: object, **named: object) -> Self:
        """The metric with these values of its labels, in their order or by name.

        Args:
            values: One of each label, in the order of `labelnames`. They are made text, of at most
                128 characters.
            named: The same by name.

        Raises:
            ValueError: they are not the labels that it was declared with.
        """
        names = self._declared.labelnames
        if not names or self._whole or (values and named):
            raise ValueError(f"{self._declared.name}: labels() {self._expected()}")
        if named and set(named) == set(names):
            values = tuple(named[name] for name in names)
        if len(values) != len(names):
            raise ValueError(f"{self._declared.name}: labels() {self._expected()}")
        key = tuple(_text(value, LONGEST_LABEL) for value in values)
        child = self._children.get(key)
        if child is None:
            child = type(self)(self._book, self._declared, key, room=self._room)
            if child._room:  # what has none would fill the memory in its place  # noqa: SLF001 - one of us
                child = self._children.setdefault(key, child)
        return child

    def _expected(self) -> str:
        names = ", ".join(self._declared.labelnames)
        return f"expected, once, values of {names}" if names else "expected no labels"

    def _numbers(self, labels: tuple[tuple[str, str], ...]) -> tuple[KeptNumber, ...]:
        kind, name, documentation, *_ = self._declared
        sample = f"{name}_total" if kind == "counter" else name
        return (KeptNumber(kind, name, sample, labels, documentation),)

    def _has_room(self) -> bool:
        """Whether an update counts; one that does not is counted as such.

        Raises:
            ValueError: nobody said which labels.
        """
        if not self._whole:
            names = ", ".join(self._declared.labelnames)
            raise ValueError(f"{self._declared.name}: expected .labels(...) with {names} first")
        if not self._room:
            self._book.drop(self._declared.name)
        return self._room


class Counter(_Metric):
    """Only ever grows; on the page it ends in `_total`."""

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`, >= 0.

        Raises:
            ValueError: it is negative, infinite or NaN; or values of the labels are not given yet.
        """
        if not 0.0 <= amount < math.inf:
            raise ValueError(f"{self._declared.name}: expected inc() of 0 or more, got {amount!r}")
        if self._has_room():
            self._book.add([(self._series[0], amount)])


class Gauge(_Metric):
    """Goes up and down; it is gone from the page when its process is."""

    def set(self, value: float) -> None:
        """From now on it is `value`.

        Raises:
            ValueError: values of the labels are not given yet.
        """
        if self._has_room():
            self._book.put(self._series[0], float(value))

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`.

        Raises:
            ValueError: see `set`.
        """
        if self._has_room():
            self._book.add([(self._series[0], amount)])

    def dec(self, amount: float = 1.0) -> None:
        """Take `amount` away.

        Raises:
            ValueError: see `set`.
        """
        self.inc(-amount)


class Histogram(_Metric):
    """Counts observations by size."""

    def observe(self, value: float) -> None:
        """Take note of one `value`, in the unit of the buckets; NaN is none.

        Raises:
            ValueError: values of the labels are not given yet.
        """
        if self._has_room() and not math.isnan(value):
            bucket = bisect_left(self._declared.buckets, value)
            self._book.add([(self._series[bucket], 1.0), (self._series[-1], value)])

    def _numbers(self, labels: tuple[tuple[str, str], ...]) -> tuple[KeptNumber, ...]:
        kind, name, documentation, _, buckets = self._declared
        counts = (
            KeptNumber(
                kind, name, f"{name}_bucket",
                tuple(sorted((*labels, ("le", "+Inf" if bucket == math.inf else repr(bucket))))),
                documentation,
            )
            for bucket in buckets
        )  # fmt: skip
        return (*counts, KeptNumber(kind, name, f"{name}_sum", labels, documentation))


M = TypeVar("M", bound=_Metric)


class Metrics:
    """Metrics of a predictor's own, on the `/metrics` page of its replica.

    All processes of a replica are one there: counters and histograms are added up, gauges as they
    say. To ask for a metric again with the same arguments gives the same. May be used from any
    thread. There are at most 100 names, and 1000 series for each process; updates of what is beyond
    are dropped, and counted in `batchedapi_predictor_updates_dropped_total`.
    """

    def __init__(self, open_values: Callable[[], Values] = InMemory) -> None:
        """`open_values` is called once something is measured."""
        self._book = Book(open_values)
        self._metrics: dict[str, tuple[_Declared, _Metric]] = {}
        self._samples: dict[str, str] = {}
        """Every name on the page, with the metric that it is of."""

    def counter(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> Counter:
        """Make what only ever grows, such as `words`, which is `words_total` on the page.

        Args:
            name: Letters, digits and underscores; not `batchedapi_...` nor `process_...`.
            documentation: A sentence, shown on the page.
            labelnames: What its series are told apart by, such as a language; few values each.

        Raises:
            ValueError: the name or a label is not allowed, or another metric has the name.
        """
        name = name.removesuffix("_total")
        declared = _Declared("counter", name, documentation, tuple(labelnames))
        return self._named(Counter, declared, (f"{name}_total", name))

    def gauge(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), merge: str = "sum"
    ) -> Gauge:
        """Make what goes up and down, such as entries of a cache.

        Args:
            name: See `counter`.
            documentation: See `counter`.
            labelnames: See `counter`.
            merge: What the page says where several processes set it: their `sum`, `max`, `min` or
                `mostrecent`.

        Raises:
            ValueError: see `counter`; or `merge` is another word.
        """
        if merge not in MERGES:
            raise ValueError(f"{name}: expected merge to be {', '.join(MERGES)}, got {merge!r}")
        declared = _Declared(f"gauge_{merge}", name, documentation, tuple(labelnames))
        return self._named(Gauge, declared, (name,))

    def histogram(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        buckets: Sequence[float] = contract.LATENCY_BUCKETS,
    ) -> Histogram:
        """Make a count of sizes or durations by bucket.

        Args:
            name: See `counter`.
            documentation: See `counter`.
            labelnames: See `counter`.
            buckets: Upper edges, ascending, at least one; one of infinity is added. If not said,
                they are seconds from 0.0005 to 30.

        Raises:
            ValueError: see `counter`; or the buckets do not ascend, or there are none.
        """
        edges = tuple(float(edge) for edge in buckets)
        if edges and edges[-1] != math.inf:
            edges = (*edges, math.inf)
        if not edges or any(not a < b for a, b in itertools.pairwise(edges)):
            raise ValueError(f"{name}: expected buckets that ascend, got {list(buckets)!r}")
        declared = _Declared("histogram", name, documentation, tuple(labelnames), edges)
        parts = ("bucket", "sum", "count")
        return self._named(Histogram, declared, (name, *(f"{name}_{part}" for part in parts)))

    def _named(self, kind: type[M], declared: _Declared, samples: Sequence[str]) -> M:
        """The metric of that name, made if there is none yet."""
        name = declared.name
        declared = declared._replace(documentation=_text(declared.documentation, LONGEST_TEXT))
        known, metric = self._metrics.get(name, (None, None))
        if known == declared and isinstance(metric, kind):
            return metric
        _check(declared)
        for sample in samples:
            if sample in self._samples:
                raise ValueError(
                    f"context.metrics: {name!r}: {sample} is on the page already, of"
                    f" {self._samples[sample]!r}; choose another name, or the same arguments"
                )
        room = len(self._metrics) < MOST_METRICS
        made = kind(self._book, declared, room=room)
        if room:
            self._metrics[name] = declared, made
            self._samples.update(dict.fromkeys(samples, name))
        return made


def _check(declared: _Declared) -> None:
    """Refuse names that Prometheus would not read, or that are ours.

    Raises:
        ValueError: says which, and what to write.
    """
    name = declared.name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"context.metrics: expected a name of letters, digits and underscores, got {name!r}"
        )
    for reserved in RESERVED:
        if name.startswith(reserved):
            raise ValueError(
                f"context.metrics: {name!r}: names that begin with {reserved} are the server's"
                f" own; call it {name.removeprefix(reserved) or 'otherwise'!r}"
            )
    for label in declared.labelnames:
        if not _NAME.fullmatch(label) or label.startswith("__") or label == "le":
            raise ValueError(
                f"context.metrics: {name!r}: expected labels of letters, digits and underscores,"
                f" other than le and __..., got {label!r}"
            )
    if len(set(declared.labelnames)) < len(declared.labelnames):
        raise ValueError(f"context.metrics: {name!r}: a label is named twice")
