"""The requests that were admitted and are not yet answered; each is answered exactly once."""

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from batchedapi_serving.codecs import Answer
from batchedapi_serving.dispatch.jobs import Job, JobLine
from batchedapi_serving.errors import DeadlineExceededError, ServingError

_FEW_ANSWERED: Final = 64
"""Answered requests that may stay among the hurried before those are swept."""


class InFlight:
    """Owner of the jobs. Times are seconds on the dispatcher's clock.

    Deadlines ascend in the order of arrival, but for requests that bring a timeout of their own:
    only those are kept in a heap, so that whoever brings none pays nothing for it.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout` is the replica's, in seconds; inf: none."""
        self.timeout: Final = timeout
        self.patience = timeout
        """Seconds: the shortest timeout of those in flight, or shorter."""
        self._steady: dict[Job, None] = {}  # in order of arrival, which is that of deadlines
        self._hurried: dict[Job, None] = {}
        self._by_deadline: list[tuple[float, int, Job]] = []  # heap; answered ones leave late
        self._tie = count()

    def __len__(self) -> int:
        return len(self._steady) + len(self._hurried)

    def add(self, job: Job) -> None:
        """It was admitted; its deadline follows from the replica's timeout."""
        self._steady[job] = None

    def add_hurried(self, job: Job, timeout: float) -> None:
        """It was admitted and brought a timeout, in seconds, shorter than the replica's."""
        job.deadline = job.arrived + timeout
        job.hurried = True
        self._hurried[job] = None
        self.patience = min(self.patience, max(0.0, timeout))
        heappush(self._by_deadline, (job.deadline, next(self._tie), job))

    def by_line(self) -> Counter[JobLine]:
        """How many there are of each method; O(requests), so not to be asked for each of them."""
        return Counter(job.line for job in self.jobs())

    def jobs(self) -> Sequence[Job]:
        """All of them."""
        return [*self._steady, *self._hurried]

    def overdue(self, now: float) -> tuple[Sequence[Job], float]:
        """Jobs whose deadline is at or before `now`, and the deadline of the next; inf: none."""
        late: list[Job] = []
        following = math.inf
        for job in self._steady:
            if job.deadline > now:
                following = job.deadline
                break
            late.append(job)
        heap = self._by_deadline
        while heap and (heap[0][2].done or heap[0][0] <= now):
            _, _, job = heappop(heap)
            if not job.done:
                late.append(job)
        return late, min(following, heap[0][0]) if heap else following

    def answer(self, job: Job, answer: Answer, now: float) -> None:
        """Its rows are here; nothing happens if it was answered or has left before."""
        if job.done:
            return
        job.entries = ()
        if job.hurried:
            self._remove(job)
        else:  # as _remove does; this is on the hot path
            job.done = True
            del self._steady[job]
        job.line.recorder.answered(answer.status, now - job.arrived)
        job.asker.deliver(answer)

    def fail(self, job: Job, error: ServingError, now: float, rejected: str | None = None) -> None:
        """Answer with an error; what is queued of it is not run, and counts as `rejected`."""
        if job.done:
            return
        queued = self._drop(job)
        recorder = job.line.recorder
        if rejected is not None:
            recorder.rejected(rejected, queued)
        answer = job.reply.problem(error, job.asker.request_id())
        recorder.answered(error.status, now - job.arrived)
        job.asker.deliver(answer)

    def expire(self, job: Job, now: float, rows: int = 0) -> None:
        """Answer 504; `rows` of it have just left the queue for that."""
        if rows:
            job.line.recorder.rejected("expired", rows)
        error = DeadlineExceededError.after(job.deadline - job.arrived, hurried=job.hurried)
        self.fail(job, error, now, "expired")

    def left(self, job: Job, status: int) -> None:
        """The client is gone, or was told `status`: what is queued is not run."""
        recorder = job.line.recorder
        recorder.rejected("disconnected", self._drop(job))
        recorder.answered(status)

    def _drop(self, job: Job) -> int:
        """Take it out unanswered; the rows of it that were still queued."""
        self._remove(job)
        queued = 0
        cancel = job.line.batcher.cancel
        for entry in job.entries:
            queued += entry.rows if entry.queued else 0
            cancel(entry)
        job.entries = ()  # breaks the cycle job -> entry -> part -> job: nothing is left to the GC
        return queued

    def _remove(self, job: Job) -> None:
        job.done = True
        if not job.hurried:
            del self._steady[job]
            return
        del self._hurried[job]
        if not self._hurried:
            self._by_deadline.clear()
            self.patience = self.timeout
        elif len(self._by_deadline) > _FEW_ANSWERED + 2 * len(self._hurried):
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapify(self._by_deadline)
