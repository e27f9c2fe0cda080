"""Compares a warmed-up model with the revision before, by batches that a pod of it has kept.

Nothing that is in a row or an answer is told to anybody: sentences have counts and times alone.
"""

import http.client
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from batchedapi_core import contract
from batchedapi_core.comparison import (
    Allowed,
    ComparedBatch,
    Comparison,
    ComparisonReason,
    judge,
)
from batchedapi_serving.codecs import codec_of
from batchedapi_serving.codecs.equality import difference
from batchedapi_serving.errors import LoadError
from batchedapi_serving.ipc import BrokenFrameError, Frame, FrameReader, Meta, Payload
from batchedapi_serving.model.recent import FORMAT, MOST_BYTES
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import CompareSettings

log = logging.getLogger(__name__)
ASK_SECONDS: Final = 1.5
"""For one pod to connect, and for each piece of its answer."""
ASK_ALL_SECONDS: Final = 3.0
"""For the pods' name to be found, and after which no further pod is asked."""
TRY_SECONDS: Final = 2.0
"""For the runs of all methods that have batches."""
MOST_RUNS: Final = 4
"""Runs of a batch."""
TIMED: Final = 16
"""Batches at least, from all ages, that are run twice before the others are run once."""
MOST_SERVED: Final = 16
"""Revisions that are known to have served."""
_MOST_READ: Final = 2 * MOST_BYTES

Run = Callable[[MethodSpec, Meta, bytes], tuple[Meta, Sequence[Payload], float]]
"""Answers one batch frame; and in how many seconds."""
_Run = tuple[float, int, int]
"""Seconds, rows that failed, and rows that both revisions answered, and not alike."""


class NotComparedError(Exception):
    """There is nothing to compare with; says why."""


def compare(
    settings: CompareSettings,
    methods: Sequence[MethodSpec],
    run: Run,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Run the recent batches of the revision before; that there are none is only logged.

    Returns:
        Other revisions that have served, for peers: none of them is held when it comes back.

    Raises:
        LoadError: MoreErrors, AnswersDiffer or Slower, with the sentence for its user.
    """
    served: list[str] = []
    try:
        head, batches = recent_of_peer(settings, served, clock)
    except NotComparedError as error:
        log.info("not compared", extra={"reason": str(error)})
        return served
    before = {one["name"]: MethodSpec.from_json(one) for one in head["methods"]}
    allowed = Allowed(settings.slower, settings.differ)
    of_methods = [
        [one for one in batches if one.meta["batch"]["method"] == method.name] for method in methods
    ]
    seconds = TRY_SECONDS / max(1, sum(map(bool, of_methods)))
    for method, kept in zip(methods, of_methods, strict=True):
        if kept:
            found = compared(method, before[method.name], kept, run, allowed, seconds, clock)
            if found.reason is not ComparisonReason.COMPARED:
                raise LoadError(found.reason, found.sentence)
            log.info("compared", extra={"before": head["revision"], "text": found.sentence})
        elif method.name in head["too_large"]:
            text = f"{method.name}: its batches are too large to keep"
            log.info("not compared", extra={"reason": text})
    return served


def compared(  # noqa: PLR0917 - one method, with all that is known of it
    method: MethodSpec,
    before: MethodSpec,
    kept: Sequence[Frame],
    run: Run,
    allowed: Allowed,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Comparison:
    """The outcome for one method, of which some batches were kept.

    Args:
        method: As it is now.
        before: As it was.
        kept: Batches as RecentBatches has written them.
        run: Runs one.
        allowed: By how much it may be worse.
        seconds: After which nothing is begun.
        clock: Seconds.

    Raises:
        LoadError: a batch has left this process unfit.
    """
    takes = [(one.batched, one.inputs, one.batch_dim[0], one.size_of) for one in (method, before)]
    if takes[0] != takes[1]:
        text = (
            f"{method.name}: it takes other rows than before, or counts them otherwise, so it was"
            " not run"
        )
        return Comparison(ComparisonReason.COMPARED, text)
    same_answers = (method.outputs, method.single_output) == (before.outputs, before.single_output)
    fits = [one for one in kept if one.meta["batch"]["size"] <= method.max_batch_size]
    runs: list[list[_Run]] = [[] for _ in fits]
    until = clock() + seconds
    each = [*zip(fits, runs, strict=True)]
    step = max(1, len(each) // TIMED)
    timed = [one for one in each[::step] for _ in range(2)]
    others = [one for at, one in enumerate(each) if at % step]
    for one, of_one in timed + others * 2 + each * (MOST_RUNS - 2):
        if clock() > until:
            break
        of_one.append(_one_run(method, before, one, run, same_answers=same_answers))
    batches = [
        ComparedBatch(
            one.meta["batch"]["rows"],
            one.meta["seconds"],
            tuple(taken for taken, _, _ in of_one),
            len(failed_rows(one.meta["answer"], one.meta["batch"]["rows"])),
            sum(failed for _, failed, _ in of_one),
            sum(moved for _, _, moved in of_one),
        )
        for one, of_one in each
        if of_one
    ]
    if not batches:
        text = f"{method.name}: no recent batch is as small as its batches are now"
        return Comparison(ComparisonReason.COMPARED, text)
    found = judge(method.name, batches, allowed)
    if same_answers:
        return found
    text = f"{found.sentence}; its outputs are declared otherwise than before, so not compared"
    return Comparison(found.reason, text)


def _one_run(
    method: MethodSpec, before: MethodSpec, one: Frame, run: Run, *, same_answers: bool
) -> _Run:
    batch, rows, answer = one.meta["batch"], one.meta["batch"]["rows"], one.meta["answer"]
    given, expected = one.payload[: one.meta["rows"]], one.payload[one.meta["rows"] :]
    got, buffers, seconds = run(method, batch, given)
    if "unfit" in got:
        text = f"{method.name}: a recent batch of {rows} rows {got['error']}"
        raise LoadError(ComparisonReason.MORE_ERRORS, text)
    failed = failed_rows(got, rows)
    both = set(range(rows)) - failed - failed_rows(answer, rows)
    if not (both and same_answers):
        return seconds, len(failed), 0
    theirs = codec_of(before).results(answer, expected)
    ours = codec_of(method).results(got, b"".join(buffers))
    moved = sum(difference(theirs, ours, row, of=row) is not None for row in both)
    return seconds, len(failed), moved


def failed_rows(answer: Meta, rows: int) -> set[int]:
    """Rows of a batch that its clients get an error for, NaN and Infinity among them."""
    match answer:
        case {"kind": "error"}:
            return set(range(rows))
        case {"items": items}:
            return {row for row, item in enumerate(items) if item[0] >= 400}  # noqa: PLR2004 - HTTP: errors
        case _:
            return set(answer["not_finite"])


# ------------------------------------------------------------ what a pod of another revision has


def recent_of_peer(
    settings: CompareSettings, served: list[str], clock: Callable[[], float] = time.monotonic
) -> tuple[Meta, list[Frame]]:
    """What one pod of another revision has kept: the frame about its methods, and its batches.

    Adds to `served` the other revisions that pods are of, and know of.

    Raises:
        NotComparedError: there is no such pod, or it has nothing, or does not say it; or this
            revision has served before.
    """
    until, why = clock() + ASK_ALL_SECONDS, "every ready pod is of this revision"
    for host in _hosts(settings):
        if clock() > until:
            break
        try:
            head, *batches = _ask(settings, host)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = f"{host} hands no rows out: {error}"
            continue
        if head.meta.get("format") != FORMAT:
            why = f"{host} is of a release that writes rows otherwise"
            continue
        revision, before = head.meta["revision"], head.meta["served"]
        known = {settings.revision, *served}
        served += [one for one in (revision, *before) if one not in known]
        del served[MOST_SERVED:]
        if revision == settings.revision:
            continue
        if settings.revision in before:
            raise NotComparedError(f"this revision served before {revision}")
        if batches or head.meta["too_large"]:
            return head.meta, batches
        why = f"{host} has answered no batch yet"
    raise NotComparedError(why)


def _hosts(settings: CompareSettings) -> list[str]:
    """Addresses of the ready pods, in any order.

    In a thread: the resolver's own limit is some 5 s for each try, server and search domain.

    Raises:
        NotComparedError: there is none, or nothing that says so.
    """
    found: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            told = socket.getaddrinfo(settings.peers, settings.port, type=socket.SOCK_STREAM)
            found.set_result([str(address[0]) for *_, address in told])
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=look_up, name="peers", daemon=True).start()
    try:
        hosts = list(dict.fromkeys(found.result(ASK_ALL_SECONDS)))
    except OSError as error:  # TimeoutError is one, and says nothing
        why = str(error) or f"no answer of the DNS in {ASK_ALL_SECONDS:g} s"
        raise NotComparedError(f"no ready pod of {settings.peers}: {why}") from error
    random.shuffle(hosts)
    return hosts


def _ask(settings: CompareSettings, host: str) -> list[Frame]:
    """The frames of one pod.

    Raises:
        OSError: it does not answer, or not with frames.
        HTTPException: the same.
        ValueError: it refuses, or has nothing of the kind.
    """
    connection = http.client.HTTPConnection(host, settings.port, timeout=ASK_SECONDS)
    try:
        headers = {"authorization": f"Bearer {settings.token}"}
        connection.request("GET", contract.PATH_RECENT, headers=headers)
        response = connection.getresponse()
        if response.status == http.client.NOT_FOUND:
            raise ValueError("its compare is Off, or its release is older")
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        frames = list(FrameReader().feed(response.read(_MOST_READ)))
    finally:
        connection.close()
    if not frames:
        raise BrokenFrameError("no frame")
    return frames
