"""The store, and how watch events get into it."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import kopf
import pytest
from tests.unit.operator.worlds import (
    KEY,
    api_body,
    child_body,
    deployment_body,
    pod_body,
    replica_set_body,
)

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    SERVICES,
    JsonObject,
    Namespaces,
    ObjectKey,
    Resource,
)
from batchedapi_operator.handlers import EndlessBackoff, Relay, WatchScope, kopf_settings
from batchedapi_operator.queue import WorkQueue
from batchedapi_operator.reconcile.plan import parsed
from batchedapi_operator.store import Store
from batchedapi_operator.views import ChildView, DeploymentView, Observed, PodView


def event(kind: Literal["ADDED", "DELETED"] | None, body: JsonObject) -> kopf.RawEvent:
    """As kopf hands it to a handler."""
    return {"type": kind, "object": cast(kopf.RawBody, body)}


def kept(store: Store) -> tuple[JsonObject, JsonObject] | None:
    """Spec and status of the API."""
    view = store.api(KEY)
    return None if view is None else (view.document["spec"], view.status)


def test_an_api_is_found_whole() -> None:
    """Every look reads who it is; its spec is read when it changes, its status for reports."""
    last = {"time": "t", "desired": 2, "reason": "Demand", "text": "two", "record": {"terms": {}}}
    autoscaling = {"policy": "CapacitySLO", "lastDecision": last, "learned": {"version": 2, "a": 1}}
    status = {"phase": "Running", "autoscaling": autoscaling}
    body = {**api_body(), "status": status}
    store = Store()

    store.put_api(body)

    view = store.api(KEY)
    assert view is not None
    assert ("api-uid", 1, None) == (view.uid, view.generation, view.source)
    assert parsed(body) == parsed(view.document)
    assert (body["spec"], status) == kept(store)
    store.remove_api(KEY)
    assert kept(store) is None


@pytest.mark.parametrize("status", [None, {}, {"autoscaling": None}, {"autoscaling": {}}])
def test_an_api_that_nothing_was_learned_of_is_found_as_well(status: JsonObject | None) -> None:
    """A new one, and one whose status somebody has emptied."""
    store = Store()
    store.put_api({**api_body(), "status": status})

    assert (api_body()["spec"], status or {}) == kept(store)


def with_source(source: object) -> Store:
    """A store with one API."""
    store = Store()
    store.put_api(api_body(predictor={"path": "m:C", "source": source}))
    return store


def test_the_apis_of_a_config_map_are_found() -> None:
    """An edit of a user's ConfigMap concerns them and nobody else."""
    store = with_source({"configMap": "iris-model"})

    assert (KEY,) == store.users_of_config_map(ObjectKey(KEY.namespace, "iris-model"))
    assert () == store.users_of_config_map(ObjectKey("elsewhere", "iris-model"))
    assert () == store.users_of_config_map(ObjectKey(KEY.namespace, "other"))


@pytest.mark.parametrize("source", [None, 3, [], {"configMap": {}}, {"inImage": {}}])
def test_odd_sources_have_no_config_map(source: object) -> None:
    """A stored object may be invalid; looking through it must not fail."""
    assert () == with_source(source).users_of_config_map(ObjectKey(KEY.namespace, "x"))


def test_only_a_users_change_is_news() -> None:
    """Status writes come back as events, and most of them are ours."""
    store = Store()
    body = api_body()
    changed = {**body, "metadata": {**body["metadata"], "generation": 2}}

    assert store.put_api(body) is True
    assert store.put_api({**body, "status": {"phase": "Live"}}) is False
    assert store.put_api(changed) is True


def test_pods_belong_by_the_chain_of_owners() -> None:
    """API, Deployment, ReplicaSet, pod: by uid."""
    store = Store()
    store.put_pod(KEY, pod_body("ours"))
    store.put_pod(KEY, pod_body("theirs", owner="other-rs"))
    assert () == store.owned_pods(KEY)

    store.put_deployment(KEY, deployment_body())
    store.put_replica_set(KEY, replica_set_body())

    assert ["ours"] == [pod.name for pod in store.owned_pods(KEY)]
    store.remove_replica_set(KEY, "iris-rs")
    assert () == store.owned_pods(KEY)


def starting(seconds: int, *, ready: bool = True, restarts: int = 0) -> JsonObject:
    """A pod that became ready so long after it was made, or lost its readiness then."""
    body = pod_body("ours")
    body["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z"
    when = f"2026-01-02T03:{seconds // 60:02}:{seconds % 60:02}Z"
    state = "True" if ready else "False"
    body["status"]["conditions"] = [{"type": "Ready", "status": state, "lastTransitionTime": when}]
    body["status"]["containerStatuses"][0]["restartCount"] = restarts
    return body


def patient(body: JsonObject, seconds: int) -> JsonObject:
    """The same pod with a startup probe."""
    probe = {"failureThreshold": seconds, "periodSeconds": 1}
    return {**body, "spec": {"containers": [{"name": "serving", "startupProbe": probe}]}}


def startup_of(*seen: JsonObject, relisted: bool = False) -> float | None:
    """The start-up time that the store knows after it has seen a pod like that."""
    store = Store()
    store.put_deployment(KEY, deployment_body())
    store.put_replica_set(KEY, replica_set_body())
    for body in seen:
        if relisted:
            store.replace_pods(KEY, [PodView.of(body)])
        else:
            store.put_pod(KEY, body)
    (pod,) = store.owned_pods(KEY)
    return pod.startup


@pytest.mark.parametrize("relisted", [False, True])
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([starting(0, ready=False)], None, id="not yet"),
        pytest.param([starting(0, ready=False), starting(42)], 42.0, id="ready"),
        pytest.param([starting(42), starting(100, ready=False)], 42.0, id="lost"),
        pytest.param(
            [starting(42), starting(100, ready=False), starting(160)], 42.0, id="found again"
        ),
        pytest.param([starting(42, restarts=1)], None, id="a container restarted"),
        pytest.param([starting(59 * 60)], None, id="longer than any start may take"),
        pytest.param([patient(starting(59 * 60), 3600)], 3540.0, id="its probe allows an hour"),
        pytest.param([patient(starting(59 * 60), 600)], None, id="its probe allows ten minutes"),
        pytest.param([pod_body("ours")], None, id="no dates"),
    ],
)
def test_a_pods_startup_is_the_time_to_its_first_readiness(
    seen: list[JsonObject], expected: float | None, *, relisted: bool
) -> None:
    """The autoscaler plans with it; a readiness that flaps must not look like a slow start."""
    assert expected == startup_of(*seen, relisted=relisted)


def test_a_start_up_begins_with_a_node_and_the_wait_for_one_is_told_apart() -> None:
    """A full cluster made a start of 30 s one of many minutes."""
    body = starting(130)
    placed = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-01-02T03:01:40Z",
    }
    body["status"]["conditions"].append(placed)
    body["spec"] = {**body.get("spec", {}), "priority": 7}
    pod, unknown = PodView.of(body), PodView.of(pod_body("ours"))
    placed["status"] = "False"
    waits = PodView.of(body)

    assert (30.0, 100.0, 7) == (pod.startup, pod.placement, pod.priority)
    assert (None, None, 0) == (unknown.startup, unknown.placement, unknown.priority)
    assert (None, None) == (waits.startup, waits.placement)


async def test_events_are_stored_and_queued_on_the_operators_loop() -> None:
    """Kopf has a thread of its own; the store has one owner."""
    worked: list[ObjectKey] = []

    async def work(key: ObjectKey) -> float | None:
        worked.append(key)
        return None

    store = Store()
    queue = WorkQueue(work)
    relay = Relay(asyncio.get_running_loop(), store, queue)
    take_pod = relay.child, PODS, store.put_pod, store.remove_pod
    await asyncio.to_thread(relay.hand_on, event(None, api_body()), relay.api)
    await asyncio.to_thread(relay.hand_on, event("ADDED", pod_body()), *take_pod)
    unlabelled = {"metadata": {"name": "x", "namespace": "demo"}}
    await asyncio.to_thread(relay.hand_on, event("ADDED", unlabelled), *take_pod)
    async with asyncio.timeout(60):
        while not worked:  # noqa: ASYNC110 - of a list
            await asyncio.sleep(0.001)

    assert (KEY,) == store.apis()
    assert {KEY} == set(worked)
    await asyncio.to_thread(relay.hand_on, event("DELETED", api_body()), relay.api)
    await asyncio.sleep(0)
    assert () == store.apis()
    await queue.close()


def test_a_watch_never_gives_up() -> None:
    """Kopf's default ends after a minute, and the watch with it."""
    pauses = EndlessBackoff()

    first = [pause for pause, _ in zip(pauses, range(1000), strict=False)]

    assert len(first) == 1000
    assert 5.0 >= max(first)
    assert 0.5 >= next(iter(pauses))


def test_kopf_writes_nothing_of_its_own() -> None:
    """No events, no scanning that would need rights on namespaces and CRDs."""
    settings = kopf_settings(WatchScope())

    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True


def test_a_watch_that_hangs_is_given_up_within_a_minute() -> None:
    """Its end would have come, and a bookmark with it: the next goes on without a list."""
    watching = kopf_settings(WatchScope()).watching

    assert watching.server_timeout is not None
    assert watching.server_timeout < watching.inactivity_timeout <= 45.0


def test_an_api_whose_source_is_not_there_is_found_when_all_are_listed() -> None:
    """A watch that was cut off for long never tells that a source was deleted."""
    store, source = Store(), {"path": "m:C", "source": {"configMap": "files"}}
    store.put_api(api_body(predictor=source))
    files, others = (ObjectKey(where, "files") for where in (KEY.namespace, "other"))

    assert () == store.without_source(None, [files])
    assert (KEY,) == store.without_source(None, [others])
    assert () == store.without_source("other", [others])


def test_nothing_of_kube_system_is_even_sent_unless_it_was_named() -> None:
    """The apiserver filters watches of all namespaces; those that were named have none."""

    def filtered(namespaces: Namespaces) -> set[str]:
        watches = kopf_settings(WatchScope(namespaces)).watching
        kinds = (("batchedapi.dev", "batchedapis"), ("apps", "deployments"), ("", "pods"))
        return {watches.field_selectors.get(kind, "") for kind in kinds}

    assert {"metadata.namespace!=kube-system"} == filtered(Namespaces())
    assert {""} == filtered(Namespaces(("kube-system", "demo")))


def test_the_apis_of_one_namespace_are_compared_with_a_list_of_it_alone() -> None:
    """Otherwise a list of one namespace would say that everything in the others is gone."""
    store = Store()
    store.put_api(api_body())

    assert (KEY,) == store.apis(KEY.namespace)
    assert () == store.apis("other")
    assert set() == store.differing(SERVICES, [child_body("else")], "other")


def observed(**changes: Any) -> Observed:
    """A Deployment, a Service, a revision and a pod, as a reconcile reads them."""
    seen = Observed(
        status={},
        deployment=DeploymentView.of(deployment_body()),
        service=ChildView.of(child_body(KEY.name)),
        revisions=(ChildView.of(child_body("iris-1")),),
        pods=(PodView.of(pod_body()),),
    )
    return replace(seen, **changes)


def test_what_a_reconcile_has_read_is_no_news_when_a_watch_brings_it() -> None:
    """Each piece of news is six reads; after a start there are five for each API."""
    store = Store()
    store.put_observed(api_body(), observed())

    assert not store.put_api(api_body())
    assert not store.put_deployment(KEY, deployment_body())
    assert not store.put_named(SERVICES, KEY, child_body(KEY.name))
    assert not store.put_revision(KEY, child_body("iris-1"))
    assert not store.put_pod(KEY, pod_body())

    assert store.put_deployment(KEY, deployment_body(ready=1))
    assert store.put_named(SERVICES, KEY, child_body(KEY.name, resourceVersion="8"))
    assert store.put_revision(KEY, child_body("iris-2"))
    assert store.put_pod(KEY, pod_body(ready=False))


@pytest.mark.parametrize(
    ("resource", "name"), [(DEPLOYMENTS, KEY.name), (SERVICES, KEY.name), (CONFIG_MAPS, "iris-1")]
)
def test_what_is_gone_from_a_list_differs_until_it_has_been_read_anew(
    resource: Resource, name: str
) -> None:
    """An answer that got lost on its way to the queue must not be the only one."""
    store = Store()
    store.put_observed(api_body(), observed())
    there = deployment_body() if resource is DEPLOYMENTS else child_body(name)

    assert set() == store.differing(resource, [there])
    assert {KEY} == store.differing(resource, [])
    assert {KEY} == store.differing(resource, [])
    gone = observed(deployment=None, service=None, revisions=())
    store.put_observed(api_body(), gone, store.api(KEY))
    assert set() == store.differing(resource, [])


@pytest.mark.parametrize(
    ("resource", "name"), [(DEPLOYMENTS, "theirs"), (SERVICES, "theirs"), (CONFIG_MAPS, "theirs")]
)
def test_what_others_gave_our_label_is_neither_news_nor_a_difference(
    resource: Resource, name: str
) -> None:
    """It will never be made equal to what we would have."""
    store = Store()
    store.put_observed(api_body(), observed())
    ours = deployment_body() if resource is DEPLOYMENTS else child_body(KEY.name)
    if resource is CONFIG_MAPS:
        ours = child_body("iris-1")
    theirs = child_body(name, ownerReferences=[])
    put = {
        DEPLOYMENTS: store.put_deployment,
        SERVICES: partial(store.put_named, SERVICES),
        CONFIG_MAPS: store.put_revision,
    }[resource]

    assert not put(KEY, theirs)
    assert set() == store.differing(resource, [ours, theirs])


@pytest.mark.parametrize(
    ("resource", "name"), [(DEPLOYMENTS, KEY.name), (SERVICES, KEY.name), (CONFIG_MAPS, "iris-1")]
)
@pytest.mark.parametrize("labels", [{}, {"batchedapi.dev/api": "other"}])
def test_a_child_concerns_its_api_whatever_has_become_of_its_label(
    resource: Resource, name: str, labels: dict[str, str]
) -> None:
    """A watch tells of it under the label that it has now."""
    store = Store()
    store.put_observed(api_body(), observed())
    stranger = child_body("iris-9", labels={}, ownerReferences=[])

    robbed = store.concerned(resource, child_body(name, labels=labels, ownerReferences=[]))

    assert {KEY} == {key for key in robbed if key.name != "other"}
    assert len(labels) == len(robbed - {KEY})
    assert {KEY} == store.concerned(resource, child_body("lost", labels={}))
    assert set() == store.concerned(CONFIG_MAPS, stranger)
    assert ("iris-1",) == store.revisions(KEY)
    assert () == store.revisions(ObjectKey("demo", "other"))


def test_a_revision_that_lost_its_owner_is_news_and_differs() -> None:
    """It is ours, and is to be put right."""
    store = Store()
    store.put_observed(api_body(), observed())
    robbed = child_body("iris-1", ownerReferences=[], resourceVersion="8")

    assert {KEY} == store.differing(CONFIG_MAPS, [robbed])
    assert store.put_revision(KEY, robbed)


def versioned(generation: int, phase: str) -> JsonObject:
    """The API, edited so often."""
    body = api_body()
    body["metadata"]["generation"] = generation
    return {**body, "status": {"phase": phase}}


@pytest.mark.parametrize("newer", [versioned(2, "Live"), versioned(1, "Live")])
def test_what_a_watch_brought_while_children_were_read_is_not_replaced(newer: JsonObject) -> None:
    """An edit, or a status: what was read before it is older."""
    store, read = Store(), versioned(1, "Pending")
    store.put_api(api_body())
    since = store.api(KEY)
    store.put_api(newer)

    store.put_observed(read, observed(), since)

    assert (newer["spec"], newer["status"]) == kept(store)
    assert newer["metadata"]["generation"] == store.api(KEY).generation  # type: ignore[union-attr]
    assert store.deployment(KEY) is not None


def test_what_was_deleted_while_its_children_were_read_stays_deleted() -> None:
    """Else the autoscaler would go on with it."""
    store = Store()
    store.put_api(api_body())
    since = store.api(KEY)
    store.remove_api(KEY)

    store.put_observed(api_body(), observed(), since)

    assert (None, None, ()) == (store.api(KEY), store.deployment(KEY), store.apis())


def test_a_promotion_is_news_though_the_spec_is_the_same() -> None:
    """It is an annotation, which counts no generation."""
    store, body = Store(), api_body()
    store.put_api(body)
    promoted = {**body["metadata"], "annotations": {contract.ANNOTATION_PROMOTE: "iris-b"}}

    assert not store.put_api(body)
    assert store.put_api({**body, "metadata": promoted})
    assert not store.put_api({**body, "metadata": promoted})
