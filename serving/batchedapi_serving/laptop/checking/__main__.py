"""Program that checks a predictor; started by `batchedapi check`, not by hand.

Argument: the runtime folder, which has the options (`CheckOptions`) and gets the report. On a
terminal a line says what is being done; it is gone when there is a report to read.
"""

import contextlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from batchedapi_core import contract
from batchedapi_core.service_model import BatchSums, ServiceTime, fit
from batchedapi_serving.codecs import Results, codec_for
from batchedapi_serving.codecs.equality import difference
from batchedapi_serving.errors import ClientError, LoadError
from batchedapi_serving.ipc import Meta, Payload
from batchedapi_serving.laptop.checking.equality import (
    AskedMethod,
    FailedError,
    Sample,
    by_shape,
    choose_samples,
    findings,
)
from batchedapi_serving.laptop.checking.report import (
    REPORT_FILE,
    BatchTiming,
    CheckOptions,
    MethodReport,
    Report,
    advise_sharing,
    unit_of,
)
from batchedapi_serving.logs import configure_logging, log_apart
from batchedapi_serving.model.__main__ import leave_reason
from batchedapi_serving.model.forking import problem_of_fork
from batchedapi_serving.model.loaded import PATIENCE, LoadedPredictor, construct
from batchedapi_serving.model.submit import LocalAnswers
from batchedapi_serving.model.worker import ChannelLoop
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import kill_with_parent
from batchedapi_serving.settings import ReplicaSettings

FEWEST_RUNS: Final = 3
MOST_RUNS: Final = 50
SECONDS_A_SIZE: Final = 0.5
"""After which a size that was run FEWEST_RUNS times is done with."""


def _nothing(_: str) -> None:
    """Where nobody watches."""


def _line_on_a_terminal(text: str) -> None:
    """In the place of the one before; an empty one takes it away."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


class LocalChannel(ChannelLoop):
    """Answers what the predictor submits with the predictor itself: there is no dispatcher.

    `answer_with` is called once the predictor is loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answers: LocalAnswers | None = None

    def answer_with(self, answers: LocalAnswers) -> None:
        """Answer submits with these from now on."""
        self._answers = answers

    async def submit(self, meta: Meta, payload: Sequence[bytes]) -> tuple[Meta, bytes]:
        """See ChannelLoop.submit."""
        if self._answers is None:
            return await super().submit(meta, payload)
        return await self._answers.answer(meta, b"".join(payload))


def main(runtime: str) -> int:
    """Check every method; the exit code is 1 when there is a failure file to read."""
    kill_with_parent()
    settings = ReplicaSettings.read(runtime)
    configure_logging("warning", "check")
    log_apart()
    wanted = CheckOptions.read(runtime)
    tell = _line_on_a_terminal if sys.stderr.isatty() else _nothing
    tell("loading the predictor")
    channel = LocalChannel()
    try:
        loaded = construct(settings, 0, channel)
        shared, sharing, marked = False, None, loaded.values is not None
        if marked or settings.processes > 1:
            tell("comparing answers of a fork")
            problem = problem_of_sharing(loaded, wanted)
            shared = marked and problem is None
            sharing = advise_sharing(problem, settings.processes, marked=marked)
        lanes = loaded.begin()
    except LoadError as error:
        leave_reason(settings.failure_path(0), error)
        return 1
    runner, methods = loaded.runner, loaded.methods
    channel.answer_with(LocalAnswers(runner, methods, settings, lanes))

    def run(spec: MethodSpec, meta: Meta, payload: bytes) -> tuple[Meta, Sequence[Payload]]:
        if spec.is_async:
            return lanes.wait(channel.call(runner.run_async(meta, payload)))
        return lanes.call(partial(runner.run, meta, payload))

    found = tuple(
        _check(settings, partial(run, spec), spec, wanted=wanted, tell=tell) for spec in methods
    )
    tell("")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = Report(settings.name, found, peak, shared, sharing)
    (Path(runtime) / REPORT_FILE).write_text(json.dumps(report.to_json()))
    return 0


def problem_of_sharing(loaded: LoadedPredictor, wanted: CheckOptions) -> str | None:
    """Why processes cannot share the model; None: a fork answers as this process does.

    Raises:
        LoadError: the warm-up failed.
    """
    problem = loaded.problem_of_sharing()
    if problem is not None:
        return problem
    settings, began = loaded.settings, time.monotonic()
    asked: list[tuple[AskedMethod, Sample, Results]] = []
    for spec in loaded.methods:
        if spec.batched and not spec.is_async:
            codec = codec_for(spec, settings.of_method(spec.name), settings.name)
            method = AskedMethod(codec, loaded.runner.run)
            with contextlib.suppress(ClientError, FailedError):  # said where it is checked
                rows = choose_samples(codec, wanted.items).rows
                asked += [(method, row, method.ask([row])) for row in rows]

    def compare() -> str | None:
        found = (
            difference(answer, method.ask([row]), 0, set(wanted.ignored))
            for method, row, answer in asked
        )
        text = next((one for one in found if one is not None), None)
        return None if text is None else f"answers otherwise: {text}"

    return problem_of_fork(compare, PATIENCE + 3 * (time.monotonic() - began))


def _check(
    settings: ReplicaSettings,
    run: Callable[[Meta, bytes], tuple[Meta, Sequence[Payload]]],
    spec: MethodSpec,
    *,
    wanted: CheckOptions,
    tell: Callable[[str], None],
) -> MethodReport:
    none = MethodReport(spec.name, spec.batched, spec.max_batch_size, 0, "nothing", (), (), None)
    if not spec.batched:
        how = "it streams the answer to one request" if spec.streams else "it takes one request"
        return replace(none, source=f"{how} at a time")
    codec = codec_for(spec, settings.of_method(spec.name), settings.name)
    method = AskedMethod(codec, run)
    try:
        chosen = choose_samples(codec, wanted.items)
        if not chosen.rows:
            return replace(none, source="give @batched an example=, or use --items FILE")
        asked = replace(none, source=chosen.source, samples=len(chosen.rows))
        if spec.size_of is not None:
            asked = replace(asked, unit=unit_of(spec.size_of))
        tell(f"{spec.name}: comparing {len(chosen.rows)} rows alone and in batches")
        wrong = tuple(findings(method, chosen.rows, spec.max_batch_size, set(wanted.ignored)))
        timings, line = time_batches(
            method, chosen.rows, spec.max_batch_size, tell=lambda what: tell(f"{spec.name}: {what}")
        )
    except (ClientError, FailedError) as error:
        return replace(none, source="what it was sent", samples=1, findings=(str(error),))
    return replace(asked, findings=wrong, timings=timings, line=line)


def time_batches(
    method: AskedMethod,
    samples: Sequence[Sample],
    max_batch_size: int,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = _nothing,
) -> tuple[tuple[BatchTiming, ...], ServiceTime | None]:
    """Run batches of 1, 2, 4, ... the maximum, of the samples over and over.

    Returns:
        The table, and the line through all batches (least squares, without pessimism).

    Raises:
        FailedError: a batch was not answered.
    """
    group = [samples[i] for i in by_shape(samples)[0]]
    largest = max(1, max_batch_size // max(sample.cost for sample in group))
    timings, sums = [], BatchSums()
    for rows in contract.batch_size_buckets(largest):
        tell(f"timing batches of {rows} of at most {largest} rows")
        batch = [group[i % len(group)] for i in range(rows)]
        method.ask(batch)  # the first of a size may compile or allocate
        seconds: list[float] = []
        while len(seconds) < FEWEST_RUNS or (
            len(seconds) < MOST_RUNS and sum(seconds) < SECONDS_A_SIZE
        ):
            began = clock()
            method.ask(batch)
            seconds.append(clock() - began)
        median = statistics.median(seconds)
        timings.append(
            BatchTiming(rows, median, len(seconds), sum(sample.cost for sample in batch))
        )
        # Each size counts alike, however often it was run: its median, three times.
        of_size = BatchSums(1.0, rows, rows**2, median, rows * median)
        sums = sums.plus(of_size.scaled(float(FEWEST_RUNS)))
    return tuple(timings), fit(sums, ridge=0.0) if len(timings) > 1 else None


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # user code may have left threads that never end
