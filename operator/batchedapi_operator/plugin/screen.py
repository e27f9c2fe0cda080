"""The screen or JSON of `kubectl batchedapi status`. Pure."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import click

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.plugin.pages import MethodFigures, Window
from batchedapi_operator.plugin.why import (
    NoDecisionError,
    newest,
    recommendation,
    standing_aside,
    table,
)
from batchedapi_operator.reconcile.conditions import STUCK
from batchedapi_operator.views import PodView

_NORMALLY_FALSE: Final = ("Progressing", "ScalingLimited", "SpecAdvice", "Reconciling", "Stalled")
"""Conditions that say something while they are True; the others do while they are not."""
_MOST_PODS: Final = 8
"""Lines for single pods: the screen is for what is not as it should be."""
_SMALLEST_BAR: Final = 10
_REPORTED: Final = (
    ("meanRows", "{} rows each"),
    ("maxBatchSize", "at most {}"),
    ("fullPercent", "{} % released full"),
    ("rowsPerSecond", "{} rows/s"),
    ("batchesPerSecond", "{} batches/s"),
    ("paddingPercent", "{} % padding"),
    ("busyPercent", "lanes busy {} % of the time"),
)
"""Figures of `status.batching`, and what each is."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Properties of the terminal, and lines for it."""

    width: int
    """Columns, >= 40."""
    has_colours: bool
    block: str
    """One character of a bar."""

    def coloured(self, text: str, colour: str) -> str:
        """The text in bold and that colour, where there are colours."""
        return click.style(text, fg=colour, bold=True) if self.has_colours and text else text

    def title(self, text: str) -> str:
        """The text in bold, likewise."""
        return click.style(text, bold=True) if self.has_colours else text

    def wrapped(self, text: str, indent: str = "") -> list[str]:
        """Lines; those after the first stand under the first one's text.

        What users' code said may be in them: nothing that a terminal would obey gets there.
        """
        return textwrap.wrap(
            "".join(c if c.isprintable() or c.isspace() else "?" for c in text),
            self.width,
            initial_indent=indent,
            subsequent_indent=" " * (len(indent) or 2),
            break_long_words=False,
            break_on_hyphens=False,
        )

    def bars(self, rows: Sequence[tuple[str, float]]) -> Iterator[str]:
        """A line for each (label, share); the longest bar is the largest share."""
        label_width = max(len(label) for label, _ in rows)
        room = max(_SMALLEST_BAR, self.width - label_width - len("     100 %"))
        largest = max(share for _, share in rows) or 1.0
        for label, share in rows:
            length = math.ceil(room * share / largest) if share else 0
            bar = self.coloured(self.block * length, "cyan") + " " * (room - length)
            yield f"  {label:>{label_width}} {bar} {_percent(share):>6}"


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A pod of the API."""

    view: PodView
    restarts: int
    """Restarts of its containers."""
    running: bool
    """Its page may be asked for."""

    @classmethod
    def of(cls, body: JsonObject) -> Self:
        """From a pod's body."""
        status = section(body, "status")
        containers = listed(status, "containerStatuses")
        restarts = sum(one.get("restartCount", 0) for one in containers)
        view = PodView.of(body)
        running = status.get("phase") == "Running" and not view.waiting_reason
        return cls(view, restarts, running)

    @property
    def state(self) -> str:
        """In a word or two; of those that wait, what for."""
        view = self.view
        if view.gone:
            return "ending"
        if view.ready:
            return "ready"
        if view.before is not None:
            return view.before.reason
        if view.waiting_reason or view.beside is None:
            return view.waiting_reason or ("without a node" if view.unschedulable else "starting")
        return view.beside.reason

    def is_as_wanted(self) -> bool:
        """Whether there is nothing to say about it."""
        return self.state == "ready" and not self.restarts


@dataclass(frozen=True, slots=True)
class ScreenData:
    """All that was read of an API."""

    api: JsonObject
    deployment: JsonObject | None
    """None: there is none, or it may not be read."""
    replicas: tuple[ReplicaRow, ...]
    window: Window
    pages: int
    """Replicas whose pages `window` is made of."""
    missing: tuple[str, ...] = ()
    """Failed reads, each with its reason and the right that it takes."""
    web: tuple[ReplicaRow, ...] = ()
    """Web pods, of an API with one queue for all replicas."""

    @property
    def status(self) -> Mapping[str, Any]:
        """The API's; empty while it has none."""
        return section(self.api, "status")

    @property
    def revision(self) -> str:
        """Digest of the newest that is known; empty while there is none."""
        spec = (self.deployment or {}).get("spec") or {}
        template = section(section(spec, "template"), "metadata")
        told = section(template, "labels").get(contract.LABEL_REVISION, "")
        name: str = section(self.status, "revision").get("current", "")
        return told or name.rpartition("-")[2]

    def counts(self) -> dict[str, int]:
        """Pods wanted, ready, of the newest revision, and there; by the Deployment if it is known.

        The status is as old as the operator's last report.
        """
        status, wanted = self.status, self.status.get("desiredReplicas") or 0
        if self.deployment is not None:
            status = section(self.deployment, "status")
            wanted = self.deployment["spec"].get("replicas", 1)
        names = {"ready": "readyReplicas", "updated": "updatedReplicas", "existing": "replicas"}
        return {"wanted": wanted, **{ours: status.get(name) or 0 for ours, name in names.items()}}

    def revisions(self) -> list[dict[str, Any]]:
        """Pods by revision, the newest revision first."""
        newest = self.revision
        found = {one.view.revision for one in self.replicas}
        digests = sorted((digest != newest, digest) for digest in found)
        return [
            {
                "revision": digest,
                "current": not older,
                "pods": len(pods),
                "ready": sum(one.view.ready for one in pods),
                "restarts": sum(one.restarts for one in pods),
            }
            for older, digest in digests
            if (pods := [one for one in self.replicas if one.view.revision == digest])
        ]


def conditions_by_urgency(
    conditions: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(what is broken, what is worth knowing, what is as it should be), each in its order."""
    broken: list[Mapping[str, Any]] = []
    notable: list[Mapping[str, Any]] = []
    normal: list[Mapping[str, Any]] = []
    for one in conditions:
        if one.get("reason") == STUCK or (one["type"] == "Stalled" and one["status"] == "True"):
            broken.append(one)
        elif one["type"] in _NORMALLY_FALSE:
            (notable if one["status"] == "True" else normal).append(one)
        else:
            (normal if one["status"] == "True" else broken).append(one)
    return broken, notable, normal


def as_json(seen: ScreenData) -> JsonObject:
    """The whole screen, for programs; docs/guides/looking.md has every field."""
    metadata, status = seen.api["metadata"], seen.status
    batching = section(status, "batching")
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase"),
        "message": status.get("message", ""),
        "url": status.get("url"),
        "generation": metadata.get("generation"),
        "observedGeneration": status.get("observedGeneration"),
        "replicas": seen.counts(),
        "revisions": seen.revisions(),
        "pods": [
            {
                "name": one.view.name,
                "revision": one.view.revision,
                "state": one.state,
                "ready": one.view.ready,
                "restarts": one.restarts,
            }
            for one in (*seen.replicas, *seen.web)
        ],
        **({"web": status["web"]} if status.get("web") else {}),
        **({"queue": status["queue"]} if status.get("queue") else {}),
        "conditions": list(listed(status, "conditions")),
        "window": {
            "seconds": round(seen.window.seconds, 3),
            "sinceStart": seen.window.since_start,
            "pods": seen.pages,
        },
        "methods": [_method_json(one) for one in seen.window.methods],
        "batching": batching,
        "recommendation": status.get("recommendation"),
        "decision": section(status, "autoscaling").get("lastDecision"),
        "missing": list(seen.missing),
    }


def _method_json(figures: MethodFigures) -> JsonObject:
    """Names as in a manifest; what is unknown or beyond the last edge is null."""

    def name(python: str) -> str:
        first, *rest = python.split("_")
        return first + "".join(map(str.capitalize, rest))

    found = {name(field): value for field, value in asdict(figures).items()}
    found["batchesByRows"] = [
        {"upTo": None if math.isinf(edge) else edge, "batches": count}
        for edge, count in figures.batches_by_rows
    ]
    return {
        field: None if isinstance(value, float) and math.isinf(value) else value
        for field, value in found.items()
    }


def screen(seen: ScreenData, terminal: Terminal) -> str:
    """The screen; no line is wider than the terminal, but for names that are."""
    parts = (
        _head(seen, terminal),
        _replicas(seen, terminal),
        _conditions(seen, terminal),
        _batches(seen, terminal),
        _why(seen, terminal),
        [line for text in seen.missing for line in terminal.wrapped(f"missing: {text}")],
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines)


def _head(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    metadata, status = seen.api["metadata"], seen.status
    phase = str(status.get("phase") or "no status yet")
    colour = {"Live": "green", "Error": "red", "Degraded": "red"}.get(phase, "yellow")
    head = f"{metadata['namespace']}/{metadata['name']}"
    message = status.get("message") or ""
    first, *rest = terminal.wrapped(f"{head}: {phase}{', ' if message else ''}{message}") or [head]
    plain = f"{head}: {phase}"
    yield terminal.title(f"{head}: ") + terminal.coloured(phase, colour) + first[len(plain) :]
    yield from rest
    if status.get("url"):
        yield status["url"]
    generation, observed = metadata.get("generation", 0), status.get("observedGeneration") or 0
    if observed < generation:
        text = (
            f"the operator has not seen generation {generation} yet: what follows is of"
            f" {observed or 'none'}; if that lasts, see whether the operator runs"
        )
        yield from terminal.wrapped(text)


def _replicas(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    counts = seen.counts()
    yield terminal.title("REPLICAS") + (
        f"  {counts['wanted']} wanted, {counts['ready']} ready,"
        f" {counts['updated']} of the newest revision"
    )
    if seen.replicas:
        rows = [
            (
                one["revision"] or "none",
                "newest" if one["current"] else "older",
                *(str(one[name]) for name in ("pods", "ready", "restarts")),
            )
            for one in seen.revisions()
        ]
        yield from table(("REVISION", "", "PODS", "READY", "RESTARTS"), rows)
    if seen.status.get("web"):
        yield from _one_queue(seen, terminal)
    yield from _odd_pods(seen, terminal)


def _one_queue(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    """One queue for all replicas: who answers, and what waits."""
    queue, ready = section(seen.status, "queue"), sum(one.view.ready for one in seen.web)
    wanted = seen.status["web"].get("desiredReplicas") or 0
    yield terminal.title("WEB PODS") + f"  {wanted} wanted, {ready} ready"
    if "rows" in queue:
        oldest = queue.get("oldestSeconds") or "0"
        waits = f", the oldest for {oldest} s" if queue["rows"] else ""
        yield terminal.title("QUEUE") + f"  {queue['rows']} rows wait{waits}"
    yield from terminal.wrapped(queue.get("webReason") or "")


def _odd_pods(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    odd = [one for one in (*seen.replicas, *seen.web) if not one.is_as_wanted()]
    for one in odd[:_MOST_PODS]:
        states = [one.state]
        if one.restarts:
            last = f", last {one.view.exit_reason}" if one.view.exit_reason else ""
            states.append(f"{one.restarts} restart{'s' * (one.restarts > 1)}{last}")
        yield from terminal.wrapped(f"pod {one.view.name}: {'; '.join(states)}")
    if len(odd) > _MOST_PODS:
        yield f"and {len(odd) - _MOST_PODS} more pods like these: -o json has all"


def _conditions(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    broken, notable, normal = conditions_by_urgency(listed(seen.status, "conditions"))
    if not (broken or notable or normal):
        return
    yield terminal.title("CONDITIONS")
    for mark, colour, found in (("!", "red", broken), ("-", "yellow", notable)):
        for one in found:
            message = f": {one['message']}" if one.get("message") else ""
            plain = f"{one['type']} {one['status']}, {one['reason']}{message}"
            first, *rest = terminal.wrapped(plain, f"{mark} ")
            yield terminal.coloured(first[0], colour) + first[1:]
            yield from rest
    if normal:
        yield from terminal.wrapped("as usual: " + ", ".join(one["type"] for one in normal))


def _batches(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    window = seen.window
    if not window.methods:  # no page could be read
        yield from _reported(section(seen.status, "batching"), terminal)
        return
    pods = f"{seen.pages} pod{'s' * (seen.pages != 1)}"
    over = (
        f"since the start of {pods}, {window.seconds:.0f} s ago; idle now"
        if window.since_start
        else f"of {pods} within {window.seconds:.1f} s"
    )
    yield terminal.title("BATCHES") + f"  {over}"
    for figures in window.methods:
        yield from _method_lines(figures, terminal, idle=window.since_start)


def _reported(batching: Mapping[str, Any], terminal: Terminal) -> Iterator[str]:
    said = {name: text for name, text in _REPORTED if batching.get(name) not in (None, "")}
    if not said:
        return
    yield terminal.title("BATCHES") + "  by the operator's last report"
    yield from terminal.wrapped(
        "; ".join(text.format(batching[name]) for name, text in said.items())
    )
    reasons = section(batching, "releaseReasons")
    released = ", ".join(f"{reason} {percent} %" for reason, percent in reasons.items())
    if released:
        yield from terminal.wrapped(f"released: {released}")


def _method_lines(figures: MethodFigures, terminal: Terminal, *, idle: bool) -> Iterator[str]:
    mean = "no batches"
    if figures.mean_rows is not None:
        mean = f"{contract.size(figures.mean_rows)} rows each"
    limit = (
        f"at most {figures.max_batch_size:g}, batchInterval {contract.ms(figures.batch_interval)}"
    )
    yield from terminal.wrapped(f"{figures.method}: {mean}; {limit}")
    sizes = _size_rows(figures.batches_by_rows)
    if sizes:
        yield from terminal.bars(sizes)
    now = f"queue {figures.queue_rows:.0f} rows, in flight {figures.in_flight:.0f} requests"
    if not idle:
        now += (
            f"; {contract.per_second(figures.requests_per_second)} requests/s,"
            f" {contract.rate(figures.rows_per_second)},"
            f" {contract.per_second(figures.batches_per_second)} batches/s"
        )
    yield from terminal.wrapped(now, "  ")
    if figures.p50 is not None and figures.p99 is not None:
        took = f"answered within {_latency(figures.p50)} (p50), {_latency(figures.p99)} (p99)"
        if figures.mean_queue_wait is not None and figures.mean_batch_seconds is not None:
            wait, run = map(contract.ms, (figures.mean_queue_wait, figures.mean_batch_seconds))
            took += f"; on average {wait} in the queue, {run} in a batch"
        yield from terminal.wrapped(took, "  ")
    told = (
        ("released", _shares(figures.released)),
        ("padding", "" if figures.padding is None else f"{100 * figures.padding:.0f} %"),
        ("refused rows", ", ".join(f"{why} {rows:.0f}" for why, rows in figures.rejected.items())),
        ("answers", "" if set(figures.answered) <= {"200"} else _shares(figures.answered)),
    )
    for what, shares in told:
        if shares:
            yield from terminal.wrapped(f"{what}: {shares}", "  ")


def _size_rows(buckets: Sequence[tuple[float, float]]) -> list[tuple[str, float]]:
    """(rows, share of batches) from the smallest batch that ran to the largest that may."""
    everything = sum(count for _, count in buckets)
    rows: list[tuple[str, float]] = []
    low = 1.0
    for edge, count in buckets:
        if math.isinf(edge):
            label = f"> {low - 1:g}"
            if not count:
                break
        else:
            label = f"{edge:g}" if edge <= low else f"{low:g}-{edge:g}"
        if everything and (count or rows):
            rows.append((label, count / everything))
        low = edge + 1
    return rows


def _latency(seconds: float) -> str:
    return (
        f"over {contract.LATENCY_BUCKETS[-1]:g} s" if math.isinf(seconds) else contract.ms(seconds)
    )


def _percent(share: float) -> str:
    """One failure of a thousand is not none."""
    return "< 1 %" if 0.0 < share < _HALF_A_PERCENT else contract.percent(share)


_HALF_A_PERCENT: Final = 0.005


def _shares(counts: Mapping[str, float]) -> str:
    """Percents, the largest first."""
    everything = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{label} {_percent(count / everything)}" for label, count in ordered)


def _why(seen: ScreenData, terminal: Terminal) -> Iterator[str]:
    name, status = seen.api["metadata"]["name"], seen.status
    yield terminal.title("WHY SO MANY")
    try:
        decision = newest(name, status)
    except NoDecisionError as error:
        yield from terminal.wrapped(error.message)
    else:
        aside = "" if status["autoscaling"].get("policy") else standing_aside(status)
        if aside:
            yield from terminal.wrapped(f"nothing is decided now: {aside}; the last decision:")
        yield from terminal.wrapped(decision["text"])
        yield f"decided {decision['time']}"
    batching = section(status, "batching")
    if batching.get("bottleneck"):
        advice = f": {batching['advice']}" if batching.get("advice") else ""
        yield from terminal.wrapped(f"bottleneck {batching['bottleneck']}{advice}")
    yield from terminal.wrapped(recommendation(status))
