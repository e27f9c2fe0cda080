"""`kubectl batchedapi logs`: the lines of all replicas, each with its pod before it."""

import heapq
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click
from kubernetes import client
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin.cluster import REFUSED, SECONDS
from batchedapi_operator.plugin.replicas import NotReadError, list_pods

LOOK_SECONDS: Final = 2.0
"""Between two looks for pods while they are followed."""
_CONNECTIONS: Final = 512
"""One for each pod that is followed; a smaller pool of the client would complain of each."""
_QUIET_SECONDS: Final = 86400.0
"""A replica that is not asked writes nothing for hours."""
_WAITING_LINES: Final = 10_000
"""To be printed; where the reader is slow, pods are read as slowly."""
_OVERLAP_SECONDS: Final = 10
"""That are asked for again after a connection broke."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines of which pods."""

    namespace: str
    name: str
    """Of the API."""
    container: str
    revision: str | None = None
    """None: of every revision."""
    since_seconds: int | None = None
    tail: int | None = None
    """Lines of each pod to begin with; None: all."""
    previous: bool = False
    """Of the container before the last restart."""

    def __str__(self) -> str:
        of = f" of revision {self.revision!r}" if self.revision is not None else ""
        return f"BatchedAPI {self.name!r} in namespace {self.namespace!r} has no pods{of}"


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line of a log."""

    time: str
    """As the kubelet wrote it down: RFC 3339 with nanoseconds, which compares as text."""
    pod: str
    text: str

    def __str__(self) -> str:
        return f"{self.pod} | {self.text}"


class LogUnreadableError(Exception):
    """A pod whose log cannot be read; the text says why."""


def print_logs(wanted: Wanted) -> None:
    """What the pods have written until now, in the order of its times.

    Raises:
        ClickException: There are no such pods, or no log of any can be read.
    """
    pods = _pods(wanted)
    if not pods:
        found = sorted(revisions(wanted.namespace, wanted.name))
        others = f"kubectl batchedapi status {wanted.name} -n {wanted.namespace} says why"
        if wanted.revision is not None and found:
            others = f"there are pods of {', '.join(found)}"
        raise click.ClickException(f"{wanted}; {others}")
    readable: list[Iterator[Line]] = []
    for name in (str(pod["metadata"]["name"]) for pod in pods):
        try:
            readable.append(_lines(wanted, name))
        except LogUnreadableError as error:
            _notice(str(error))
    if not readable:
        raise click.ClickException("no log could be read")
    try:
        for line in heapq.merge(*readable):
            click.echo(line)
    except LogUnreadableError as error:
        raise click.ClickException(str(error)) from error


def follow_logs(wanted: Wanted) -> None:
    """The same, and what they write from now on, until interrupted; pods that appear are joined.

    Raises:
        ClickException: Pods cannot be listed.
    """
    lines: queue.Queue[Line | str | click.ClickException] = queue.Queue(_WAITING_LINES)
    over = threading.Event()
    threading.Thread(target=_look, args=(wanted, lines.put, over), daemon=True).start()
    try:
        while True:
            told = lines.get()
            if isinstance(told, click.ClickException):
                raise told
            if isinstance(told, str):
                _notice(told)
            else:
                click.echo(told)
    finally:
        over.set()


Tell = Callable[[Line | str | click.ClickException], None]


def _look(wanted: Wanted, tell: Tell, over: threading.Event) -> None:
    """Follow every container of the pods that there are and will be, each once."""
    known: dict[str, str] = {}  # pods and their revisions
    begun: set[str] = set()  # containers
    first = True
    while not over.is_set():
        try:
            pods = {str(pod["metadata"]["name"]): pod for pod in _pods(wanted)}
        except click.ClickException as error:
            if first:
                tell(error)
                return
            tell(f"{error.message}; trying again")
            over.wait(LOOK_SECONDS)
            continue
        if first and not pods:
            tell(f"{wanted} yet; waiting for one")
        for name in known.keys() - pods.keys():
            tell(f"{name} is gone")
            del known[name]
        for name, pod in pods.items():
            if name not in known:
                known[name] = str(pod["metadata"].get("labels", {}).get(contract.LABEL_REVISION))
                tell(f"{name}, revision {known[name]}")
            # the one that runs, or was the last to
            container = str(_container(pod, wanted.container).get("containerID") or "")
            if container and container not in begun:
                begun.add(container)
                # what comes later is shown from its beginning
                start = wanted if first else replace(wanted, tail=None, since_seconds=None)
                words = (start, name, container, tell, over)
                threading.Thread(target=_follow, args=words, daemon=True).start()
        first = False
        over.wait(LOOK_SECONDS)


def _follow(wanted: Wanted, pod: str, container: str, tell: Tell, over: threading.Event) -> None:
    """Every line of a container; where the connection ends before it does, from there on."""
    last, told = "", ""
    while not over.is_set():
        shown_until, why = last, ""
        try:
            for line in _lines(wanted, pod, follow=True):
                if line.time > shown_until:
                    last = line.time
                    tell(line)
        except LogUnreadableError as error:
            why = str(error)
        except click.ClickException as error:
            tell(error)
            return
        ended = time.monotonic()
        state = _state(wanted, pod, container)
        if state != _RUNNING:
            tell(why or f"{pod}: its container has ended{f' ({state})' if state else ''}")
            return
        if why and why != told:
            told = why
            tell(f"{why}; trying again")
        over.wait(LOOK_SECONDS)
        # lines of the meantime, and some before: those that were shown are told by their time
        since = round(time.monotonic() - ended) + _OVERLAP_SECONDS
        wanted = replace(wanted, since_seconds=since, tail=None)


def _pods(wanted: Wanted) -> list[JsonObject]:
    try:
        pods = list_pods(wanted.namespace, wanted.name)
    except NotReadError as error:
        raise click.ClickException(str(error)) from error
    return [
        pod
        for pod in pods
        if wanted.revision in {None, pod["metadata"]["labels"].get(contract.LABEL_REVISION)}
    ]


def revisions(namespace: str, name: str) -> set[str]:
    """Digests that pods of an API run; none where they cannot be listed."""
    try:
        pods = list_pods(namespace, name)
    except NotReadError:
        return set()
    labels = (pod["metadata"]["labels"].get(contract.LABEL_REVISION) for pod in pods)
    return {str(one) for one in labels if one}


def _container(pod: JsonObject, name: str) -> JsonObject:
    status = pod.get("status") or {}
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    found = (one for kind in kinds for one in status.get(kind) or () if one["name"] == name)
    return next(found, {})


_RUNNING: Final = "running"


def _state(wanted: Wanted, pod: str, container: str) -> str:
    """Of one container: running, else the reason of its end; empty where nothing is known."""
    try:
        found = {str(one["metadata"]["name"]): one for one in _pods(wanted)}.get(pod, {})
    except click.ClickException:
        return _RUNNING  # the apiserver may be back soon
    status = _container(found, wanted.container)
    state = status.get("state") or {}
    if status.get("containerID") == container and _RUNNING in state:
        return _RUNNING
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    return str(ended.get("reason") or "")


def _lines(wanted: Wanted, pod: str, *, follow: bool = False) -> Iterator[Line]:
    """Lines of a pod; the request is made at once.

    Raises:
        LogUnreadableError: At once, or in between.
        ClickException: No log of the namespace may be read.
    """
    options: dict[str, Any] = {
        "container": wanted.container,
        "since_seconds": wanted.since_seconds,
        "tail_lines": wanted.tail,
        "previous": wanted.previous or None,
        "follow": follow or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    given["_request_timeout"] = (SECONDS, _QUIET_SECONDS if follow else SECONDS)
    configuration = client.Configuration.get_default_copy()
    configuration.connection_pool_maxsize = _CONNECTIONS
    core = client.CoreV1Api(client.ApiClient(configuration))
    try:
        answer = core.read_namespaced_pod_log(
            pod, wanted.namespace, timestamps=True, _preload_content=False, **given
        )
    except client.ApiException as error:
        if error.status in REFUSED:
            raise click.ClickException(
                f"you may not read logs in namespace {wanted.namespace!r}: that takes `get` on"
                " pods/log, which whoever has the ClusterRole view there has"
            ) from error
        try:  # what the API server, or the kubelet behind it, says
            said = str(json.loads(error.body or "")["message"])
        except (ValueError, KeyError, TypeError):
            said = f"apiserver: {error.status} {error.reason}"
        raise LogUnreadableError(f"{pod}: {said}") from error
    except HTTPError as error:
        raise LogUnreadableError(f"{pod}: apiserver: {error}") from error
    return _parsed(pod, answer)


def _parsed(pod: str, answer: Any) -> Iterator[Line]:
    try:
        for line in iter_resp_lines(answer):  # type: ignore[no-untyped-call] # no types
            when, _, text = line.partition(" ")
            yield Line(when, pod, text)
    except HTTPError as error:
        raise LogUnreadableError(f"{pod}: the connection broke: {error}") from error


def _notice(text: str) -> None:
    """On stderr: what is not a line of a log."""
    click.echo(f"-- {text}", err=True)
