"""Command line, logs and admin port."""

import json
import logging

import aiohttp
import pytest
from click.testing import CliRunner
from tests.unit.operator.worlds import KEY, MemoryCluster, api_body, deployment_body, no_fleet

from batchedapi_core.manifest import pod_defaults
from batchedapi_operator import command as program
from batchedapi_operator import logs
from batchedapi_operator.admin import OperatorMetrics, admin_server, decisions_server
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    JsonObject,
    Namespaces,
    ObjectKey,
)
from batchedapi_operator.logs import JsonFormatter, LogFormat, TerminalFormatter
from batchedapi_operator.process import Settings, stale
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.store import Store
from batchedapi_operator.views import DeploymentView, Observed
from ports import free_port


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("{", "Expecting property name"),
        ("[]", "defaults.pod: expected an object, got '[]'"),
        (
            '{"tolerations": [{"effect": "Never"}]}',
            "defaults.pod.tolerations[0].effect: Input should be",
        ),
        (
            '{"volumeMounts": [{"name": "a", "mountPath": "/etc"}]}',
            "defaults.pod.volumeMounts[].mountPath must not cover",
        ),
    ],
)
def test_a_wrong_default_ends_the_start_with_the_value_that_is_wrong(
    written: str, complaint: str
) -> None:
    """Rules between fields are more than Helm can check."""
    done = CliRunner().invoke(program.main, ["--pod-defaults", written])

    assert 2 == done.exit_code
    assert complaint in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        pytest.param(
            [], {}, Settings(serving_image=program.default_serving_image()), id="defaults"
        ),
        pytest.param(
            [],
            {
                "BATCHEDAPI_SERVING_IMAGE": "mine:1",
                "BATCHEDAPI_WATCH_NAMESPACE": "demo other demo",
                "BATCHEDAPI_LOG_LEVEL": "debug",
                "BATCHEDAPI_LOG_FORMAT": "text",
                "BATCHEDAPI_ADMIN_PORT": "9000",
            },
            Settings(
                "mine:1",
                Namespaces(("demo", "other")),
                Policies(),
                "debug",
                LogFormat.TEXT,
                "",
                9000,
            ),
            id="environment",
        ),
        pytest.param(
            ["--serving-image", "flag:1"],
            {"BATCHEDAPI_SERVING_IMAGE": "env:1", "BATCHEDAPI_WATCH_NAMESPACE": ""},
            Settings("flag:1"),
            id="a flag beats the environment; an empty namespace is all",
        ),
        pytest.param(
            ["--serving-image", "flag:1"],
            {"BATCHEDAPI_POD_DEFAULTS": '{"topologySpreadConstraints": [], "labels": {"a": "b"}}'},
            Settings(
                "flag:1",
                pod_defaults=pod_defaults({"topologySpreadConstraints": [], "labels": {"a": "b"}}),
            ),
            id="defaults of pods",
        ),
    ],
)
def test_settings_come_from_flags_then_environment(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    expected: Settings,
) -> None:
    """The chart sets the environment; a developer sets flags."""
    seen: list[Settings] = []

    async def run(settings: Settings) -> None:
        seen.append(settings)

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(logs, "set_up", lambda _level, _style: None)

    done = CliRunner().invoke(program.main, arguments, env=environment)

    assert (0, [expected]) == (done.exit_code, seen)


def test_a_namespace_that_cannot_be_one_is_refused_with_how_to_name_several() -> None:
    """A comma is the likely mistake; it would be watched in silence, and nothing ever found."""
    done = CliRunner().invoke(program.main, ["--watch-namespace", "demo,other"])

    assert done.exit_code
    assert "'demo,other'" in done.output
    assert "with a flag of its own" in " ".join(done.output.replace("│", " ").split())


def test_a_log_line_is_one_json_object_with_its_facts() -> None:
    """A constant event that can be counted, and facts that can be queried."""
    made = logging.makeLogRecord(
        {"msg": "replicas changed", "levelname": "INFO", "api": "demo/iris", "desired": 5}
    )

    line = json.loads(JsonFormatter().format(made))

    assert ("replicas changed", "demo/iris", 5) == (line["event"], line["api"], line["desired"])
    assert "api=demo/iris desired=5" in TerminalFormatter().format(made)


def known_decisions(key: ObjectKey, count: int) -> list[JsonObject]:
    """One API has decided thrice."""
    return [{"desired": 3 - n} for n in range(3)][:count] if key.name == "iris" else []


async def answers_of(metrics: OperatorMetrics, *paths: str) -> dict[str, tuple[int, str]]:
    """Status and text of the operator's answers, each from the port that it is for."""
    found = {}
    port, decisions = free_port(), free_port()
    async with (
        admin_server(
            "127.0.0.1",
            port,
            live=lambda: True,
            ready=lambda: "not yet",
            registry=metrics.registry,
        ),
        decisions_server(decisions, known_decisions, no_fleet),
        aiohttp.ClientSession() as session,
    ):
        for path in paths:
            asked = decisions if path.startswith("/decisions") else port
            async with session.get(f"http://127.0.0.1:{asked}{path}") as answer:
                found[path] = (answer.status, await answer.text())
    return found


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/decisions/demo/iris", 200, '[{"desired": 3}, {"desired": 2}, {"desired": 1}]'),
        ("/decisions/demo/iris?last=1", 200, '[{"desired": 3}]'),
        ("/decisions/demo/nobody", 404, "no decision about BatchedAPI demo/nobody"),
        ("/decisions/demo/iris?last=0", 400, "last: expected a number"),
        ("/decisions/demo/iris?last=99999999999999", 400, "last: expected a number"),
        ("/decisions/demo/iris?last=00001", 400, "last: expected a number"),
        ("/decisions/demo/iris?last=000000001" + 5000 * "0", 400, "last: expected a number"),
        ("/decisions/demo/iris?last=-1", 400, "last: expected a number"),
        ("/decisions/demo", 404, ""),
    ],
)
async def test_the_decisions_port_tells_the_last_decisions(
    path: str, status: int, words: str
) -> None:
    """F3: `kubectl batchedapi why --last` reads them from here."""
    found = await answers_of(OperatorMetrics(), path)

    assert status == found[path][0]
    assert words in found[path][1]


async def test_decisions_are_told_on_loopback_alone() -> None:
    """They are about every namespace, and nobody is asked for credentials."""
    address = "127.0.0.2"  # this machine's too, as the address of its pod is
    port, admin = free_port(), free_port()
    checks = {"live": lambda: True, "ready": lambda: "", "registry": OperatorMetrics().registry}
    async with (
        admin_server("", admin, **checks),
        decisions_server(port, known_decisions, no_fleet),
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://{address}:{admin}/livez") as health:
            assert 200 == health.status
        async with session.get(f"http://{address}:{admin}/decisions/demo/iris") as other:
            assert 404 == other.status
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://{address}:{port}/decisions/demo/iris")


async def test_the_admin_port_tells_health_and_metrics() -> None:
    """Readiness goes when the apiserver does not answer; liveness does not."""
    metrics = OperatorMetrics()
    metrics.decided(
        ObjectKey("demo", "iris"), "Demand", desired=3, ready=2, base=10.0, capacity=5.0
    )

    found = await answers_of(metrics, "/livez", "/readyz", "/metrics")

    assert (200, 503) == (found["/livez"][0], found["/readyz"][0])
    wanted = 'batchedapi_operator_desired_replicas{name="iris",namespace="demo"} 3.0'
    assert wanted in found["/metrics"][1]


def test_metrics_of_an_api_that_is_gone_are_gone() -> None:
    """Else the series of every API there ever was would stay."""
    metrics = OperatorMetrics()
    key = ObjectKey("demo", "iris")
    metrics.decided(key, "Demand", desired=3, ready=2, base=10.0, capacity=5.0)
    metrics.scraped(key, "success")

    metrics.forget(key)

    left = [s for family in metrics.registry.collect() for s in family.samples]
    assert not [sample for sample in left if sample.labels.get("name") == "iris"]


async def stale_of(cluster: MemoryCluster, store: Store) -> set[ObjectKey]:
    """The stale objects of every kind."""
    kinds = (BATCHED_APIS, DEPLOYMENTS, SERVICES, CONFIG_MAPS)
    return set().union(*[await stale(cluster, store, None, kind) for kind in kinds])


async def test_apis_and_children_that_a_cut_watch_did_not_tell_of_are_found_in_a_list() -> None:
    """Deleted, made or changed meanwhile: each is queued; one that is as it was is not."""
    store, cluster = Store(), MemoryCluster()
    seen = Observed(status={}, deployment=DeploymentView.of(deployment_body()))
    store.put_observed(api_body(), seen)
    cluster.put(BATCHED_APIS, api_body())
    cluster.put(DEPLOYMENTS, deployment_body())
    assert set() == await stale_of(cluster, store)

    del cluster.objects[DEPLOYMENTS, KEY]
    assert {KEY} == await stale_of(cluster, store)
    store.put_observed(api_body(), Observed(status={}), store.api(KEY))
    assert set() == await stale_of(cluster, store)

    cluster.put(BATCHED_APIS, {**api_body(), "spec": {"predictor": {"path": "m:D"}}})
    assert {KEY} == await stale_of(cluster, store)
    store.put_api(cluster.objects[BATCHED_APIS, KEY])
    assert set() == await stale_of(cluster, store)

    del cluster.objects[BATCHED_APIS, KEY]
    other = api_body()
    other["metadata"] |= {"name": "other"}
    cluster.put(BATCHED_APIS, other)
    assert {KEY, ObjectKey(KEY.namespace, "other")} == await stale_of(cluster, store)
