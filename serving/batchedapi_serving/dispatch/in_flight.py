"""The requests that were admitted and are not yet answered; each is answered exactly once."""

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from batchedapi_core.batching import Request
from batchedapi_serving.codecs import Answer
from batchedapi_serving.dispatch.jobs import Job, JobLine
from batchedapi_serving.errors import DeadlineExceededError, ServingError

_FEW_ANSWERED: Final = 64
"""Answered requests that may stay among the hurried before those are swept."""


class InFlight:
    """Owner of the jobs, by the ids of their requests. Times are seconds of the dispatcher's clock.

    Deadlines ascend in the order of arrival, but for requests that bring a timeout of their own:
    only those are kept in a heap, so that whoever brings none pays nothing for it.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout` is the replica's, in seconds; inf: none."""
        self.timeout: Final = timeout
        self._steady: dict[int, Job] = {}  # in order of arrival, which is that of deadlines
        self._hurried: dict[int, Job] = {}
        self._by_deadline: list[tuple[float, int, Job]] = []  # heap; answered ones leave late

    def __len__(self) -> int:
        return len(self._steady) + len(self._hurried)

    def add(self, job: Job) -> None:
        """It was admitted."""
        request = job.request
        if not job.hurried:
            self._steady[request.id] = job
            return
        self._hurried[request.id] = job
        heappush(self._by_deadline, (request.deadline, request.id, job))

    def get(self, request: Request) -> Job | None:
        """Whose rows these are; None: it was answered or has left."""
        job = self._steady.get(request.id)
        return self._hurried.get(request.id) if job is None and self._hurried else job

    def payloads(self, requests: Sequence[Request]) -> list[Any]:
        """The rows of each; none of them was answered."""
        steady, hurried = self._steady, self._hurried
        payloads = []
        for request in requests:
            job = steady.get(request.id) or hurried[request.id]
            payload, first = job.payload, request.first
            if request.split is not None:
                payload = job.line.codec.part(payload, first, first + request.rows)
            payloads.append(payload)
        return payloads

    def by_line(self) -> Counter[JobLine]:
        """How many there are of each method; O(requests), so not to be asked for each of them."""
        return Counter(job.line for job in self.jobs())

    def jobs(self) -> Sequence[Job]:
        """All of them."""
        return [*self._steady.values(), *self._hurried.values()]

    def overdue(self, now: float) -> tuple[Sequence[Job], float]:
        """Jobs whose deadline is at or before `now`, and the deadline of the next; inf: none."""
        late: list[Job] = []
        following = math.inf
        for job in self._steady.values():
            if job.request.deadline > now:
                following = job.request.deadline
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
        request = job.request
        if job.hurried:
            self._remove(job)
        else:  # as _remove does; this is on the hot path
            job.done = True
            job.payload = None
            del self._steady[request.id]
        job.line.recorder.answered(answer.status, now - request.arrived)
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
        recorder.answered(error.status, now - job.request.arrived)
        job.asker.deliver(answer)

    def expire(self, job: Job, now: float) -> None:
        """Answer 504; what is queued of it is not run."""
        request = job.request
        timeout = request.deadline - request.arrived
        error = DeadlineExceededError.after(timeout, hurried=job.hurried)
        self.fail(job, error, now, "expired")

    def left(self, job: Job, status: int) -> None:
        """The client is gone, or was told `status`: what is queued is not run."""
        recorder = job.line.recorder
        recorder.rejected("disconnected", self._drop(job))
        recorder.answered(status)

    def _drop(self, job: Job) -> int:
        """Take it out unanswered; the rows of it that were still queued."""
        self._remove(job)
        return job.line.scheduler.cancel(job.request)

    def _remove(self, job: Job) -> None:
        job.done = True
        job.payload = None
        if not job.hurried:
            del self._steady[job.request.id]
            return
        del self._hurried[job.request.id]
        if not self._hurried:
            self._by_deadline.clear()
        elif len(self._by_deadline) > _FEW_ANSWERED + 2 * len(self._hurried):
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapify(self._by_deadline)
