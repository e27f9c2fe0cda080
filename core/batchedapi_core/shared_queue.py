"""One queue for all replicas: what web processes and workers decide about the rows in it.

    web process ── hands rows in ──▶ a stream for each signature and method ── taken ──▶ worker
         ▲                                                                                 │
         └──────────────── a list of answers for each web process ◀────── answers ─────────┘

A row is in the queue until its answer is written: whoever took it owns it until then. Everybody
says that they live, again and again; of whom nothing is heard in two looks in a row is dead.

    a worker is dead          `fate`: others take its rows, in company once, then alone
    a web process is dead     its rows are not run
    the queue was lost        `again`: web processes hand in what they still hold

Nothing here knows how the queue is kept. Times are seconds.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 0.3
"""Between two looks at who lives, and between two signs of life."""
ALIVE_SECONDS: Final = 1.2
"""Seconds that a sign of life counts: with two looks, rows of the dead are taken within 1.8 s."""
LONGEST_AHEAD: Final = 0.1
"""Seconds of a batch behind which a worker holds another: fetching it takes less than one of them,
and where batches take longer, another worker may be free before."""
ADMISSION_MARGIN: Final = 1.05
"""On the expected time to an answer, as inside a replica."""
_QUIET_LOOKS: Final = 2
"""Without anything in the queue, after which the last worker of its methods may leave."""
_IN_COMPANY: Final = 1
_ALONE: Final = 2


class WorkerLanes(NamedTuple):
    """The lanes that methods share at one worker."""

    free: int
    total: int
    max_batch_size: int
    """Rows of the largest batch among the methods."""
    full_seconds: float
    """Seconds that a full batch is expected to take; 0: not known."""
    held: int
    """Rows taken and not running."""


def rows_to_take(lanes: WorkerLanes) -> int:
    """Rows that a worker may take: a batch for each free lane, and at most one full batch ahead.

    Nothing ahead of long batches, or before there is a lane at all.
    """
    if lanes.total <= 0:
        return 0
    ahead = 1 if lanes.full_seconds <= LONGEST_AHEAD else 0
    return max(0, (lanes.free + ahead) * lanes.max_batch_size - lanes.held)


class RowsARequest:
    """Smoothed: how many requests to ask for, to get so many rows."""

    GAIN: Final = 1 / 16

    def __init__(self) -> None:
        self.mean = 1.0

    def learn(self, rows: int) -> None:
        """A request of so many came."""
        self.mean += (rows - self.mean) * self.GAIN

    def requests(self, rows: int) -> int:
        """At least one, if there is room for a row."""
        return max(1, int(rows / self.mean)) if rows > 0 else 0


class Fate(enum.Enum):
    """The fate of a row whose worker died."""

    IN_COMPANY = "in company"
    """It runs again with whatever is queued."""
    ALONE = "alone"
    """It runs again, and nothing else beside it: whoever dies of it takes no neighbour along."""
    FAILED = "failed"
    """It ran alone, and its worker died: 500."""
    REFUSED = "refused"
    """Nothing is run twice: 503."""


def fate(deaths: int, *, runs_again: bool) -> Fate:
    """The fate of a row whose workers died `deaths` times, >= 1."""
    if not runs_again:
        return Fate.REFUSED
    if deaths <= _IN_COMPANY:
        return Fate.IN_COMPANY
    return Fate.ALONE if deaths == _ALONE else Fate.FAILED


class Claim(NamedTuple):
    """Rows of dead workers that a worker takes over."""

    places: Sequence[int]
    """Places of the rows to take, among those that were left."""
    alone: int
    """How many of the rows that were left are to be run alone."""


class Hand(NamedTuple):
    """A worker, as far as it decides whether to take rows, to take some over, or to leave."""

    busy: bool = False
    """It has rows, or a question for some is under way."""
    alone: bool = False
    """A row that it has is run alone."""
    suspect: bool = False
    """Rows that are to be run alone were with no worker at the last look. Nothing else is taken,
    so that soon nothing is in hand and one of them can be claimed."""
    draining: bool = False
    """It is to stop."""
    others: int = 0
    """Workers beside it that have the same methods and are to stay."""
    quiet_looks: int = 0
    """Looks in a row at which nothing was in the queue or in hand."""

    @property
    def leaves(self) -> bool:
        """Whether it may stop: others run what is queued, or nothing is."""
        return self.draining and (self.others > 0 or self.quiet_looks >= _QUIET_LOOKS)

    @property
    def takes(self) -> bool:
        """Whether it asks for rows."""
        return not (self.alone or self.suspect or self.leaves)

    def claim(self, deaths: Sequence[int], *, runs_again: bool) -> Claim:
        """Choose among rows that dead workers left, whose workers died `deaths` times each.

        Rows that are to be run alone come first and one at a time, with nothing else in hand: a row
        that only waited for its turn must not be taken for what killed the worker.
        """
        fates = [fate(times, runs_again=runs_again) for times in deaths]
        alone = [place for place, one in enumerate(fates) if one is Fate.ALONE]
        if alone:
            return Claim([] if self.busy else alone[:1], len(alone))
        return Claim([] if self.alone else range(len(deaths)), 0)


class Living:
    """Processes that live, as one of them sees it."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}

    def look(self, known: Iterable[str], alive: Collection[str]) -> frozenset[str]:
        """Note who of `known` has given a sign of life; those who are dead.

        One look may come at a bad moment: right after the queue itself stood still.
        """
        missed = {name: self._missed.get(name, 0) + 1 for name in known if name not in alive}
        self._missed = missed
        return frozenset(name for name, times in missed.items() if times > 1)


class HeldRow(NamedTuple):
    """A row that a web process holds until it is answered."""

    number: int
    sent: bool
    """It was handed in, or perhaps was."""
    entry: str | None
    """Its place in the queue; None: not known, as nobody said."""


class Again(NamedTuple):
    """The fate of rows that a web process holds, when it has reached the queue again."""

    hand_in: Sequence[int]
    refuse: Sequence[int]


def again(kept: Iterable[HeldRow], there: Collection[str], *, runs_again: bool) -> Again:
    """Rows to hand in once more.

    Args:
        kept: What it holds, in order of arrival.
        there: Places in the queue that are still taken. Who had another is answered, or lost: the
            answer with the connection, or the queue.
        runs_again: Whether a row may be run twice; else whoever may have been taken is refused.
    """
    hand_in, refuse = [], []
    for row in kept:
        if row.sent:
            if row.entry is not None and row.entry in there:
                continue
            if not runs_again:
                refuse.append(row.number)
                continue
        hand_in.append(row.number)
    return Again(hand_in, refuse)


class Worker(NamedTuple):
    """A worker's description of itself, sent with each sign of life."""

    signature: str
    """Signature of its methods: rows of another are not for it."""
    revision: str
    started: float
    """Unix time at which its model was loaded."""
    draining: bool
    capacity: Mapping[str, tuple[int, int, float]]
    """By method: lanes, size of a full batch, its seconds (0: not known)."""


def signature_in_use(
    workers: Iterable[Worker],
    revision: str,
    published: Mapping[str, tuple[str, float]],
    current: str | None,
) -> str | None:
    """By which methods a web process checks.

    Those of its own revision's workers, else of whoever was started last; while none runs what was
    published: for its revision, else what it used so far, else the newest.

    Args:
        workers: Who live.
        revision: Of the web process.
        published: By revision: signature and Unix time.
        current: What it uses.
    """
    living = [worker for worker in workers if not worker.draining] or list(workers)
    if living:
        best = max(living, key=lambda worker: (worker.revision == revision, worker.started))
        return best.signature
    if revision and revision in published:
        return published[revision][0]
    if current is not None:
        return current
    if published:
        return max(published.values(), key=lambda one: one[1])[0]
    return None


def expected_seconds(workers: Iterable[Worker], method: str, signature: str, rows: int) -> float:
    """Until an answer to a row behind `rows` others; 0 while nobody knows, so that all are taken.

    What runs now is among those others: only what is behind a full batch on each lane waits.
    """
    rate, running, slowest = 0.0, 0, 0.0
    for worker in workers:
        lanes, size, seconds = worker.capacity.get(method, (0, 0, 0.0))
        if worker.signature == signature and lanes > 0 and seconds > 0.0:
            rate += lanes * size / seconds
            running += lanes * size
            slowest = max(slowest, seconds)
    if not rate:
        return 0.0
    return max(0, rows - running) / rate + slowest


def admits(target: float | None, expected: float, rows: int) -> bool:
    """Whether a request is taken that is `expected` to be answered in so many seconds.

    An empty queue always tries: a bad estimate could never be corrected otherwise.
    """
    return target is None or rows <= 0 or expected * ADMISSION_MARGIN <= target
