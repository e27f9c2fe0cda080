"""`kubectl batchedapi logs` against an apiserver that answers over a real socket."""

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.operator.plugin.test_command_line import API, STATUS, Cluster, apiserver
from tests.unit.operator.plugin.test_screen import pod

from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin import logs
from batchedapi_operator.plugin.__main__ import main
from pages import blocks, commands

__all__ = ["apiserver"]

PODS = "/api/v1/namespaces/demo/pods"
PAGE = [
    command
    for block in blocks("docs/guides/looking.md")
    if block.language == "console"
    for command, _ in commands(block.text)
    if " logs " in command
]


def line(second: int, text: str) -> str:
    """As the kubelet gives it with timestamps."""
    return f"2026-01-02T03:04:{second:02}.000000000Z {text}\n"


def running(name: str, revision: str = "r1", container: str = "1") -> JsonObject:
    """A pod whose container runs."""
    body = pod(name, revision, running={})
    body["status"]["containerStatuses"][0]["containerID"] = f"containerd://{name}{container}"
    return body


def ended(name: str, revision: str = "r1") -> JsonObject:
    """The same after its end."""
    body = running(name, revision)
    body["status"]["containerStatuses"][0]["state"] = {"terminated": {"reason": "OOMKilled"}}
    return body


@dataclass
class Logs(Cluster):
    """An API with pods that wrote something."""

    worlds: list[list[JsonObject]] = field(default_factory=list)
    """Pods at one look after the other; the last stay."""
    written: dict[str, list[str]] = field(default_factory=dict)
    """By pod: what each request is answered with, the last again and again; no pod: 400."""
    log_status: int = 200
    list_status: int = 200
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As the apiserver does."""
        if request.path == PODS:
            if self.list_status != 200:
                return web.json_response({"kind": "Status"}, status=self.list_status)
            pods = self.worlds.pop(0) if len(self.worlds) > 1 else self.worlds[0]
            return web.json_response({"kind": "PodList", "items": pods})
        if not request.path.startswith(PODS):
            return await super().answer(request)
        name = request.path.split("/")[-2]
        self.asked.append((name, dict(request.query)))
        if self.log_status != 200:
            return web.json_response({"kind": "Status"}, status=self.log_status)
        if name not in self.written:
            text = f'container "serving" in pod "{name}" is waiting to start: ContainerCreating'
            return web.json_response({"kind": "Status", "message": text}, status=400)
        texts = self.written[name]
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        stream = web.StreamResponse()
        await stream.prepare(request)
        for part in text.splitlines(keepends=True):
            await stream.write(part.encode())
            await asyncio.sleep(0)
        return stream


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Logs:
    """Two replicas of two revisions."""
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.02)
    return Logs(
        {API: STATUS},
        worlds=[[running("b", "r2"), running("a")]],
        written={
            "a": [line(1, "loading") + line(3, "ready")],
            "b": [line(2, "loading, too") + line(4, "")],
        },
    )


def run(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["logs", "iris", *arguments])


def interrupt() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def when_printed(monkeypatch: pytest.MonkeyPatch, **steps: Callable[[], object]) -> None:
    """Do something as soon as words are printed, `_` standing for a space."""
    echo = click.echo

    def echo_and_do(message: object, **how: Any) -> None:
        echo(message, **how)
        for words, step in steps.items():
            if words.replace("_", " ") in str(message):
                step()

    monkeypatch.setattr(click, "echo", echo_and_do)


@pytest.mark.usefixtures("apiserver")
def test_lines_of_all_replicas_are_printed_in_the_order_of_their_times() -> None:
    """What one replica did after another is seen, which the logs one by one do not show."""
    told = run()

    assert 0 == told.exit_code, told.output
    assert "a | loading\nb | loading, too\na | ready\nb | \n" == told.stdout


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("command", PAGE)
def test_what_the_guide_shows_prints_lines(
    cluster: Logs, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Options as they are written there; name and revision are those of this cluster."""
    words = shlex.split(command.replace("3f2a1b9c", "r2"), comments=True)
    assert ["kubectl", "batchedapi", "logs", "sleepy"] == words[:4]
    shown = {"b"} if "--revision" in words else {"a", "b"}
    waited_for = set(shown)

    def begun(name: str) -> None:
        waited_for.discard(name)
        if not waited_for:
            interrupt()

    when_printed(monkeypatch, **{"a |": partial(begun, "a"), "too": partial(begun, "b")})

    told = run(*words[4:])

    assert "b | loading, too" in told.stdout.splitlines(), told.output
    first = dict(reversed(cluster.asked))
    assert shown == set(first)
    assert ("true" if "--previous" in words else None) == first["b"].get("previous")
    assert ("300" if "--since" in words else None) == first["b"].get("sinceSeconds")


def test_the_guide_shows_what_the_test_above_runs() -> None:
    """A test of no command at all would pass."""
    assert 3 == len(PAGE)


@pytest.mark.usefixtures("apiserver")
def test_one_revision_alone_is_printed_if_it_is_named(cluster: Logs) -> None:
    """In a rollout the new one is what is looked at."""
    told = run("--revision", "r2", "--since", "5m", "--tail", "7")

    assert "b | loading, too\nb | \n" == told.stdout
    ((name, query),) = cluster.asked
    assert "b" == name
    assert ("serving", "300", "7") == tuple(
        query[key] for key in ("container", "sinceSeconds", "tailLines")
    )
    assert "follow" not in query


@pytest.mark.usefixtures("apiserver")
def test_a_revision_without_pods_is_told_with_those_that_have_some() -> None:
    """It is a hash: nobody remembers it."""
    told = run("--revision", "r3")

    assert 1 == told.exit_code
    assert "has no pods of revision 'r3'; there are pods of r1, r2" in told.stderr


@pytest.mark.usefixtures("apiserver")
def test_a_pod_that_has_written_nothing_yet_keeps_nobody_from_the_others(cluster: Logs) -> None:
    """One that waits for its image has no log."""
    del cluster.written["b"]

    told = run()

    assert 0 == told.exit_code
    assert "a | loading\na | ready\n" == told.stdout
    assert '-- b: container "serving" in pod "b" is waiting to start' in told.stderr


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "following"])
@pytest.mark.parametrize(
    ("world", "words"),
    [
        (
            {"log_status": 403},
            "you may not read logs in namespace 'demo': that takes `get` on pods",
        ),
        ({"list_status": 403}, "you may not read pods in namespace 'demo': that takes `list`"),
        ({"objects": {}}, "there is no BatchedAPI 'iris' in namespace 'demo'"),
    ],
    ids=["no logs", "no pods", "no api"],
)
def test_what_may_not_be_read_is_the_end_with_the_right_that_it_takes(
    cluster: Logs, world: dict[str, Any], words: str, follow: tuple[str, ...]
) -> None:
    """Trying again would not help."""
    for name, value in world.items():
        setattr(cluster, name, value)

    told = run(*follow)

    assert 1 == told.exit_code
    assert words in told.stderr


@pytest.mark.usefixtures("apiserver")
def test_no_pods_and_no_log_are_told(cluster: Logs) -> None:
    """And where to look."""
    cluster.written = {}
    assert "no log could be read" in run().stderr

    cluster.worlds = [[]]
    assert "has no pods; kubectl batchedapi status iris -n demo says why" in run().stderr


@pytest.mark.usefixtures("apiserver")
def test_pods_that_appear_are_joined_and_those_that_end_are_told(
    cluster: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout is followed from the first command to the last pod."""
    cluster.worlds = [[running("a")]]

    def turn_to(*pods: JsonObject) -> Callable[[], None]:
        return lambda: setattr(cluster, "worlds", [list(pods)])

    when_printed(
        monkeypatch,
        ready=turn_to(ended("a")),
        has_ended=turn_to(ended("a"), running("b", "r2")),
        too=turn_to(running("b", "r2")),
        a_is_gone=interrupt,
    )

    told = run("-f", "--tail", "1")

    assert 130 == told.exit_code, told.output
    for words in ("-- a, revision r1\n", "-- b, revision r2\n", "has ended (OOMKilled)"):
        assert words in told.stderr
    assert {"a | loading", "b | loading, too"} <= set(told.stdout.splitlines())
    first = dict(reversed(cluster.asked))
    assert ("1", None) == (first["a"]["tailLines"], first["b"].get("tailLines"))
    assert "true" == first["a"]["follow"]


@pytest.mark.usefixtures("apiserver")
def test_a_connection_that_breaks_is_made_again_and_no_line_is_told_twice(
    cluster: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The apiserver may be restarted; what was written meanwhile is not lost."""
    cluster.worlds = [[running("a")]]
    cluster.written = {"a": [line(1, "one"), line(1, "one") + line(2, "two"), line(3, "three")]}
    when_printed(monkeypatch, three=interrupt)

    told = run("-f")

    assert "a | one\na | two\na | three\n" == told.stdout


@pytest.mark.usefixtures("apiserver")
def test_a_container_that_was_restarted_is_followed_again(
    cluster: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash loop is what logs are followed for."""
    cluster.worlds = [[running("a")]]
    cluster.written = {"a": [line(1, "one")]}

    def restarted() -> None:
        cluster.worlds = [[running("a", container="2")]]
        cluster.written = {"a": [line(2, "two")]}

    when_printed(monkeypatch, one=restarted, two=interrupt)

    told = run("-f")

    assert told.stdout.startswith("a | one\n")
    assert told.stdout.endswith("a | two\n")


@pytest.mark.usefixtures("apiserver")
def test_an_api_without_pods_is_waited_for(cluster: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed from before its first pod."""
    cluster.worlds = [[], [running("a")]]
    when_printed(monkeypatch, ready=interrupt)

    told = run("-f")

    assert "-- BatchedAPI 'iris' in namespace 'demo' has no pods yet; waiting" in told.stderr
    assert "a | loading\na | ready\n" == told.stdout


@pytest.mark.usefixtures("apiserver")
def test_a_container_that_ended_before_writes_nothing_to_follow() -> None:
    """Both at once would never print a line."""
    told = run("-f", "--previous")

    assert 2 == told.exit_code
    assert "--previous: that container writes nothing more" in told.stderr


@pytest.mark.usefixtures("apiserver")
def test_a_duration_is_that_of_a_manifest() -> None:
    """And an error says what was expected."""
    told = run("--since", "soon")

    assert 2 == told.exit_code
    assert "soon" in told.stderr
