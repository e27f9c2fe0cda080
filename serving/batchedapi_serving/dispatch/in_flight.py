"""The requests that were admitted and are not yet answered; each is answered exactly once."""

from collections.abc import Callable, Sequence

from batchedapi_serving.codecs import Answer
from batchedapi_serving.codecs.problems import problem_answer
from batchedapi_serving.dispatch.jobs import Job, PartEntry
from batchedapi_serving.errors import ServingError
from batchedapi_serving.metrics.recorder import Recorder


class InFlight:
    """Owner of the jobs. Times are seconds on the dispatcher's clock."""

    def __init__(self, recorder: Recorder, cancel: Callable[[PartEntry], None]) -> None:
        """`cancel` takes an entry out of the queue, wherever it is."""
        self._recorder = recorder
        self._cancel = cancel
        self._jobs: dict[Job, None] = {}  # in order of arrival, which is that of deadlines

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """It was admitted."""
        self._jobs[job] = None

    def jobs(self) -> Sequence[Job]:
        """All of them, oldest first."""
        return list(self._jobs)

    def overdue(self, now: float) -> tuple[Sequence[Job], float | None]:
        """Jobs whose deadline is at or before `now`, and the deadline of the next."""
        late: list[Job] = []
        for job in self._jobs:
            if job.deadline > now:
                return late, job.deadline
            late.append(job)
        return late, None

    def answer(self, job: Job, answer: Answer, now: float) -> None:
        """Its rows are here; nothing happens if it was answered or has left before."""
        if job.done:
            return
        job.done = True
        job.entries = ()
        del self._jobs[job]
        self._recorder.answered(answer.status, now - job.arrived)
        job.asker.deliver(answer)

    def fail(self, job: Job, error: ServingError, now: float, rejected: str | None = None) -> None:
        """Answer with an error; what is queued of it is not run, and counts as `rejected`."""
        if job.done:
            return
        queued = self._drop(job)
        if rejected is not None:
            self._recorder.rejected(rejected, queued)
        self._recorder.answered(error.status, now - job.arrived)
        job.asker.deliver(problem_answer(error, job.asker.request_id()))

    def left(self, job: Job) -> None:
        """The client is gone: what is queued is not run, and nobody is told."""
        self._recorder.rejected("disconnected", self._drop(job))
        self._recorder.answered(499)

    def _drop(self, job: Job) -> int:
        """Take it out unanswered; the rows of it that were still queued."""
        job.done = True
        del self._jobs[job]
        queued = 0
        for entry in job.entries:
            queued += entry.rows if entry.queued else 0
            self._cancel(entry)
        job.entries = ()  # breaks the cycle job -> entry -> part -> job: nothing is left to the GC
        return queued
