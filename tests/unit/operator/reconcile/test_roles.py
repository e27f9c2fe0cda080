"""An API with one queue: its children, and how it gets there and back without losing a request."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    NOW,
    api,
    api_body,
    deployment_body,
    pod_body,
)

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    SERVICES,
    JsonObject,
    Resource,
)
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.resources.setting import setting_of
from batchedapi_operator.views import (
    ConditionView,
    DeploymentView,
    Observed,
    PodView,
    WebView,
)
from batchedapi_serving.cli.serving import web_command, worker_command

QUEUE: dict[str, Any] = {"serverSideBatching": {"queue": {"redis": {}}}}


def digest(spec: dict[str, Any]) -> str:
    """The digest of the first revision of such an API."""
    return revision_of(api(**spec), {}, {}).digest


NEW, OLD = digest(QUEUE), digest({})
QUEUE_WEB = "spec.serverSideBatching.queue.web"


def view(name: str = "iris", **deployment: Any) -> DeploymentView:
    """A Deployment of that name."""
    body = deployment_body(**deployment)
    body["metadata"] |= {"name": name, "uid": f"{name}-uid"}
    body["spec"]["template"]["spec"]["containers"][0] |= setting_of(api())
    return DeploymentView.of(body)


def pod(name: str, revision: str, role: str = "", *, ready: bool = True, **more: Any) -> PodView:
    """A pod of that role."""
    return replace(PodView.of(pod_body(name, ready=ready, revision=revision)), role=role, **more)


def seen(
    deployment: DeploymentView | None = None,
    pods: tuple[PodView, ...] = (),
    web: WebView | None = None,
    revision: str = "",
) -> Observed:
    """A world with those, whose status names that revision."""
    status: JsonObject = {}
    if revision:
        status = {"revision": {"current": f"iris-{revision}", "image": IMAGE}}
    return Observed(status=status, deployment=deployment, pods=pods, web=web or WebView())


def web_of(revision: str, *pods: PodView, **deployment: Any) -> WebView:
    """Web pods, two of which are ready unless said otherwise."""
    made = pods or (pod("iris-web-1", revision, "web"), pod("iris-web-2", revision, "web"))
    return WebView(view("iris-web", revision=revision, **deployment), None, made)


def planned(spec: dict[str, Any], observed: Observed, policies: Policies | None = None) -> Plan:
    """The plan for an API with that spec."""
    return plan(api_body(**spec), observed, IMAGE, NOW, policies=policies or Policies())


def applied(made: Plan, resource: Resource, name: str = "iris") -> JsonObject:
    """The child of that kind and name."""
    (found,) = (
        one.body
        for one in made.apply
        if one.resource is resource and one.body["metadata"]["name"] == name
    )
    return found


def selects(selector: JsonObject, template: JsonObject) -> bool:
    """Whether a selector of labels selects the pods of a Deployment."""
    return selector.items() <= template["spec"]["template"]["metadata"]["labels"].items()


def test_a_new_api_has_two_roles_and_its_service_selects_the_one_that_answers() -> None:
    """A request that reached a worker would be lost: it serves nobody."""
    made = planned(QUEUE, seen())
    worker, web = applied(made, DEPLOYMENTS), applied(made, DEPLOYMENTS, "iris-web")
    selector = applied(made, SERVICES)["spec"]["selector"]

    assert selects(selector, web)
    assert not selects(selector, worker)
    run = [one["spec"]["template"]["spec"]["containers"][0]["args"][0] for one in (worker, web)]
    assert ["worker", "web"] == run
    assert (1, 2) == (made.replicas, made.web_replicas)


def test_each_role_is_a_command_that_takes_its_arguments() -> None:
    """A flag that it does not know would end each pod at its start."""
    secured: dict[str, Any] = {
        **QUEUE,
        "networking": {"grpc": True, "apiKeys": {"secretName": "k"}},
    }
    commands = {"web": web_command, "worker": worker_command}
    made, listened = planned(secured, seen()), {}
    for name in ("iris", "iris-web"):
        pod_spec = applied(made, DEPLOYMENTS, name)["spec"]["template"]["spec"]
        command, *arguments = pod_spec["containers"][0]["args"]
        commands[command].make_context(command, arguments)
        listened[command] = [one["name"] for one in pod_spec["containers"][0]["ports"]]

    assert {"worker": ["admin"], "web": ["http", "admin", "grpc"]} == listened


def test_an_api_that_may_be_at_zero_runs_one_worker_first() -> None:
    """The properties of its methods are known from a worker alone."""
    made = planned(QUEUE | {"autoscaling": {"minReplicas": 0}}, seen())

    assert 1 == made.replicas


def test_neither_deployment_selects_pods_of_the_other_by_a_selector_that_it_can_match() -> None:
    """The selector of NAME can never be changed; what tells its pods from others is in NAME-web."""
    made = planned(QUEUE, seen())
    worker, web = applied(made, DEPLOYMENTS), applied(made, DEPLOYMENTS, "iris-web")

    assert {contract.LABEL_API: "iris"} == worker["spec"]["selector"]["matchLabels"]
    assert not selects(web["spec"]["selector"]["matchLabels"], worker)


def test_web_pods_have_their_own_resources_and_nothing_of_the_hardware_of_the_model() -> None:
    """A web pod on a GPU is a GPU that no model has."""
    spec: dict[str, Any] = {
        "serverSideBatching": {"queue": {"redis": {}, "web": {"cpu": "300m", "mem": "1Gi"}}},
        "compute": {"cpu": "4", "gpu": 1},
        "pod": {
            "labels": {"team": "vision"},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
            "priorityClassName": "high",
            "imagePullSecrets": [{"name": "registry"}],
        },
    }
    template = applied(planned(spec, seen()), DEPLOYMENTS, "iris-web")["spec"]["template"]

    assert "vision" == template["metadata"]["labels"]["team"]
    resources = template["spec"]["containers"][0]["resources"]
    expected = {"requests": {"cpu": "300m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert expected == resources
    hardware = {"nodeSelector", "tolerations", "runtimeClassName", "resourceClaims"}
    assert not hardware & template["spec"].keys()
    assert "high" == template["spec"]["priorityClassName"]
    assert [{"name": "registry"}] == template["spec"]["imagePullSecrets"]
    spread = template["spec"]["topologySpreadConstraints"]
    own = {contract.LABEL_API: "iris", contract.LABEL_ROLE: "web"}
    assert [own, own] == [one["labelSelector"]["matchLabels"] for one in spread]


def test_web_pods_run_where_their_own_fields_say_and_as_whom() -> None:
    """A tainted cluster, or one that refuses the default service account, has room for them."""
    where = {
        "nodeSelector": {"pool": "web"},
        "tolerations": [{"key": "web", "operator": "Exists"}],
        "serviceAccountName": "front",
    }
    spec: dict[str, Any] = {
        "serverSideBatching": {"queue": {"redis": {}, "web": {"pod": where}}},
        "pod": {"serviceAccountName": "model"},
    }
    made = planned(spec, seen())
    worker, web = (
        applied(made, DEPLOYMENTS, name)["spec"]["template"]["spec"]
        for name in ("iris", "iris-web")
    )

    assert {**where, "serviceAccount": "front"}.items() <= web.items()
    assert ("model", "model") == (worker["serviceAccountName"], worker["serviceAccount"])
    assert not {"nodeSelector", "tolerations"} & worker.keys()


def test_an_account_that_web_pods_are_no_longer_given_is_taken_away() -> None:
    """The apiserver keeps it under its old name, where no apply of ours takes it from."""
    web = WebView(replace(view("iris-web", revision=NEW), stray_account=True))
    made = planned(QUEUE, seen(view(revision=NEW), web=web))

    template = applied(made, DEPLOYMENTS, "iris-web")["spec"]["template"]["spec"]
    assert ("", "") == (template["serviceAccountName"], template["serviceAccount"])


def test_passwords_come_from_secrets_by_reference_in_both_roles() -> None:
    """The operator reads no Secret; a variable of the same name gives way to the manifest."""
    secret = {"name": "redis", "key": "password"}
    spec: dict[str, Any] = {
        "serverSideBatching": {"queue": {"redis": {"passwordSecret": secret}}},
        "predictor": {"path": "model:Iris", "env": [{"name": "REDIS__PASSWORD", "value": "x"}]},
    }
    made = planned(spec, seen())

    for name in ("iris", "iris-web"):
        body = applied(made, DEPLOYMENTS, name)
        env = body["spec"]["template"]["spec"]["containers"][0]["env"]
        expected = {"name": "REDIS__PASSWORD", "valueFrom": {"secretKeyRef": secret}}
        assert [expected] == [one for one in env if one["name"] == "REDIS__PASSWORD"]


def test_each_role_has_a_budget_and_no_pod_is_in_two() -> None:
    """A pod of two budgets is never evicted, and holds its node for ever."""
    made = planned(QUEUE, seen())
    both = [applied(made, DISRUPTION_BUDGETS, name)["spec"] for name in ("iris", "iris-web")]

    assert [1, 1] == [one["maxUnavailable"] for one in both]
    (others,) = both[0]["selector"]["matchExpressions"]
    assert ("NotIn", ["web"]) == (others["operator"], others["values"])
    assert "web" == both[1]["selector"]["matchLabels"][contract.LABEL_ROLE]


def held(made: Plan) -> bool:
    """Whether new pods of the Deployment do not yet take the place of those before."""
    return "minReadySeconds" in applied(made, DEPLOYMENTS)["spec"]


REPLICAS = (pod("iris-1", OLD), pod("iris-2", OLD))
WORKERS = (pod("iris-3", NEW, "worker"), pod("iris-4", NEW, "worker"))
STARTING = web_of(NEW, pod("iris-web-1", NEW, "web", ready=False), ready=0)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (seen(view(revision=OLD), REPLICAS, revision=OLD), True),
        (seen(view(revision=NEW), (*REPLICAS, *WORKERS), STARTING, NEW), True),
        (seen(view(revision=NEW), (*REPLICAS, *WORKERS), web_of(NEW, ready=1), NEW), True),
        (seen(view(revision=NEW), (*REPLICAS, *WORKERS), web_of(NEW), NEW), False),
        (seen(view(revision=NEW), WORKERS, web_of(NEW), NEW), False),
        (seen(view(revision=NEW), WORKERS, STARTING, NEW), False),
    ],
    ids=["first", "workers start", "one web pod", "web pods answer", "done", "nobody before"],
)
def test_replicas_stay_until_web_pods_answer(observed: Observed, *, expected: bool) -> None:
    """They serve whoever asks; workers serve nobody who is not in the queue."""
    assert expected == held(planned(QUEUE, observed))


@pytest.mark.parametrize("ending", [True, False])
def test_workers_of_a_revision_stay_while_its_web_pods_fill_the_queue(*, ending: bool) -> None:
    """Rows of one signature are taken by workers of the same alone, up to the last that drains."""
    gone = pod("iris-web-0", "former", "web", gone=ending, ending=ending)
    current = pod("iris-web-1", NEW, "web"), pod("iris-web-2", NEW, "web")
    workers = (pod("iris-0", "former", "worker"), *WORKERS)

    web = web_of(NEW, *current, gone)
    assert held(planned(QUEUE, seen(view(revision=NEW), workers, web, NEW)))
    web = web_of(NEW, *current)
    assert not held(planned(QUEUE, seen(view(revision=NEW), workers, web, NEW)))


@pytest.mark.parametrize(("past", "expected"), [(-5, True), (7, True), (8, False)])
@pytest.mark.parametrize("spec", [QUEUE, {}], ids=["a revision", "without a queue"])
def test_a_pod_that_should_be_gone_holds_no_rollout(
    spec: dict[str, Any], past: int, *, expected: bool
) -> None:
    """Its node is dead: nobody says that it has ended, and it stays until its node is deleted."""
    moment = datetime.fromisoformat(NOW)
    stuck = pod(
        "iris-web-0", "former", "web", gone=True, ending=True, due=moment - timedelta(0, past)
    )
    if spec:
        web = web_of(NEW, pod("iris-web-1", NEW, "web"), pod("iris-web-2", NEW, "web"), stuck)
        observed = seen(view(revision=NEW), (pod("iris-0", "former", "worker"), *WORKERS), web, NEW)
    else:
        observed = seen(view(revision=OLD), BACK, WebView(None, None, (stuck,)), OLD)

    made = planned(spec, observed)

    assert expected == held(made)
    assert (8 - past if expected else None) == made.retry_after  # no change tells of it


def test_web_pods_that_were_deleted_come_back_as_many_as_they_were() -> None:
    """In a Deployment made anew; only the autoscaler knows how many are needed."""
    status = {"web": {"desiredReplicas": 5}}
    bounds = {"minReplicas": 2, "maxReplicas": 4}
    bounded = {"serverSideBatching": {"queue": {"redis": {}, "web": bounds}}}
    gone = replace(seen(view(revision=NEW), WORKERS), status=status)
    unset = replace(gone, web=WebView(view("iris-web", replicas=1, replicas_owned=False)))

    assert 5 == planned(QUEUE, gone).web_replicas == planned(QUEUE, unset).web_replicas
    assert 4 == planned(bounded, gone).web_replicas
    assert 5 == planned(QUEUE, unset).status["web"]["desiredReplicas"]


BACK = (pod("iris-5", OLD), pod("iris-6", OLD))


@pytest.mark.parametrize(
    ("pods", "web", "retired", "expected"),
    [
        (WORKERS, web_of(NEW), 0, True),
        ((*WORKERS, BACK[0]), web_of(NEW), 0, True),
        ((*WORKERS, *BACK), web_of(NEW), 1, True),
        (
            (*WORKERS, BACK[0], pod("iris-6", OLD, ready=False, unschedulable="no node")),
            web_of(NEW),
            1,
            True,
        ),
        (
            (*WORKERS, *BACK),
            WebView(None, None, (pod("iris-web-1", NEW, "web", gone=True, ending=True),)),
            0,
            True,
        ),
        ((*WORKERS, *BACK), WebView(), 0, False),
    ],
    ids=["first", "one of two", "both", "no room for both", "web pods end", "they have ended"],
)
def test_without_its_queue_an_api_gets_replicas_first_and_then_loses_web_pods_and_workers(
    pods: tuple[PodView, ...], web: WebView, retired: int, *, expected: bool
) -> None:
    """Whoever sent a request to a web pod is answered by a worker."""
    made = planned({}, seen(view(revision=OLD), pods, web, OLD))

    assert bool(retired) == (made.retire is not None)
    assert expected == held(made)
    surge = applied(made, DEPLOYMENTS)["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    assert ("100%" if expected else "25%") == surge
    selector = applied(made, SERVICES)["spec"]["selector"]
    assert {contract.LABEL_API: "iris", "app.kubernetes.io/name": "batchedapi-serving"} == selector


def test_once_nothing_of_a_queue_is_left_the_children_are_those_of_an_api_that_had_none() -> None:
    """The Service selects by the one label again, and the budget too."""
    made = planned({}, seen(view(revision=OLD), BACK, revision=OLD))

    assert {contract.LABEL_API: "iris"} == applied(made, SERVICES)["spec"]["selector"]
    assert "matchExpressions" not in applied(made, DISRUPTION_BUDGETS)["spec"]["selector"]


def test_an_api_that_has_its_queue_again_begins_with_the_web_pods_that_it_asks_for() -> None:
    """Its Deployment stayed behind without any."""
    left = WebView(view("iris-web", revision=NEW, replicas=0, ready=0))

    assert 2 == planned(QUEUE, seen(view(revision=OLD), BACK, left, OLD)).web_replicas
    assert planned({}, seen(view(revision=OLD), BACK, left, OLD)).retire is None


@pytest.mark.parametrize(("mode", "expected"), [("Native", 0), ("Off", 1)])
def test_of_an_api_that_nobody_is_to_serve_web_pods_go_at_once(mode: str, expected: int) -> None:
    """In mode Native there is about to be a replica; else somebody wanted none."""
    spec: dict[str, Any] = {"autoscaling": {"mode": mode}}
    if mode == "Off":
        spec["replicas"] = 0
    made = planned(spec, seen(view(revision=OLD, replicas=0), (), web_of(NEW), OLD))

    assert bool(expected) == (made.retire is not None)


def condition(made: Plan, kind: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    (one,) = (one for one in made.status["conditions"] if one["type"] == kind)
    return one["status"], one["reason"]


BEFORE = datetime.fromisoformat(NOW) - timedelta(seconds=31)
ZERO: dict[str, Any] = QUEUE | {"autoscaling": {"minReplicas": 0}}
NOBODY = view(revision=NEW, replicas=0, ready=0)
FIRST = view(revision=NEW, replicas=1, ready=0)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (seen(view(revision=NEW), WORKERS, web_of(NEW), NEW), ("True", "AllReplicasReady")),
        (seen(view(revision=NEW), WORKERS, web_of(NEW, ready=1), NEW), ("True", "MinimumReady")),
        (seen(view(revision=NEW), WORKERS, STARTING, NEW), ("False", "WebStarting")),
        (seen(view(revision=NEW), WORKERS, revision=NEW), ("False", "WebStarting")),
        (seen(NOBODY, (), web_of(NEW), NEW), ("True", "ScaledToZero")),
        (
            seen(FIRST, (pod("iris-1", NEW, "worker", ready=False),), web_of(NEW), NEW),
            ("False", "ModelLoading"),
        ),
        (
            seen(
                FIRST,
                (pod("iris-1", NEW, "worker", ready=False, exit_code=1, exit_message="x"),),
                web_of(NEW),
                NEW,
            ),
            ("False", "CrashLooping"),
        ),
    ],
    ids=["both", "one web pod", "no web pod", "none yet", "at zero", "first or lost", "broken"],
)
def test_ready_is_of_both_roles(observed: Observed, expected: tuple[str, str]) -> None:
    """At zero by intent it is ready: who asks is answered, once a replica has started."""
    made = planned(ZERO, observed)

    assert expected == condition(made, "Ready")
    assert expected[0] == "False" or "Live" == made.status["phase"]


@pytest.mark.parametrize(
    ("before", "state", "expected"),
    [
        ("ScaledToZero", {}, ("True", "Waking")),
        ("Waking", {}, ("True", "Waking")),
        ("Waking", {"creating_since": BEFORE}, ("True", "Waking")),
        ("Waking", {"exit_code": 1, "exit_message": "x"}, ("False", "CrashLooping")),
        ("AllReplicasReady", {}, ("False", "ModelLoading")),
        ("WebStarting", {}, ("False", "ModelLoading")),
    ],
)
def test_an_api_is_waking_only_where_it_was_at_zero_by_intent(
    before: str, state: dict[str, Any], expected: tuple[str, str]
) -> None:
    """One whose workers were lost was never asleep, and is not ready."""
    starting = pod("iris-1", NEW, "worker", ready=False, **state)
    world = seen(FIRST, (starting,), web_of(NEW), NEW)
    ready = {"type": "Ready", "status": "True", "reason": before, "lastTransitionTime": NOW}
    world.status["conditions"] = [ready]

    assert expected == condition(planned(ZERO, world), "Ready")


STEPS: dict[str, tuple[DeploymentView, dict[str, Any] | None]] = {
    "zero": (NOBODY, None),
    "ordered": (FIRST, None),
    "no node": (FIRST, {"unschedulable": "0/3 nodes are available: 3 Insufficient cpu."}),
    "no volume": (
        FIRST,
        {
            "creating_since": BEFORE,
            "volumes": ("Secret keys",),
            "sandbox": ConditionView("False", "PodSandboxNotReady", ""),
        },
    ),
    "no image": (FIRST, {"waiting_reason": "ImagePullBackOff"}),
    "loads": (FIRST, {}),
    "ends": (FIRST, {"exit_code": 1, "exit_message": "x"}),
    "answers": (view(revision=NEW, replicas=1, ready=1), {"ready": True}),
}
"""Of the one worker of an API with web pods that answer: its Deployment and its pod."""


def told_of(*steps: str) -> list[tuple[str, str, str]]:
    """Status and reason of Ready, and the phase, as each step follows the status of the last."""
    status: JsonObject = {}
    found = []
    for deployment, state in map(STEPS.__getitem__, steps):
        pods = () if state is None else (pod("iris-1", NEW, "worker", **{"ready": False} | state),)
        world = replace(seen(deployment, pods, web_of(NEW), NEW), status=status)
        made = planned(ZERO, world)
        status = {"revision": {"current": f"iris-{NEW}", "image": IMAGE}, **made.status}
        found.append((*condition(made, "Ready"), status["phase"]))
    return found


def test_an_api_whose_first_replicas_wait_for_a_node_is_still_waking() -> None:
    """Then they load, for as long as ever, and web pods answer all the time."""
    expected = [
        ("True", "ScaledToZero", "Live"),
        ("True", "Waking", "Live"),
        ("False", "Waking", "Pending"),
        ("False", "Waking", "Error"),
        ("False", "Waking", "Error"),
        ("True", "Waking", "Live"),
        ("True", "AllReplicasReady", "Live"),
        ("False", "ModelLoading", "Pending"),
    ]
    steps = "zero", "ordered", "no node", "no volume", "no image", "loads", "answers", "loads"

    assert expected == told_of(*steps)


def test_what_an_api_that_wakes_waits_for_is_told_with_its_remedy() -> None:
    """Beside those that answer meanwhile."""
    deployment, state = STEPS["no node"]
    starting = pod("iris-1", NEW, "worker", ready=False, **state or {})
    world = seen(deployment, (starting,), web_of(NEW), NEW)
    ready = {"type": "Ready", "status": "True", "reason": "Waking", "lastTransitionTime": NOW}
    world.status["conditions"] = [ready]

    (told,) = (one for one in planned(ZERO, world).status["conditions"] if "Ready" == one["type"])

    assert "3 Insufficient cpu.; add nodes" in told["message"]
    assert told["message"].endswith("; 2 of 2 web pods ready")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("ordered", "no node", "loads"), ["NotStarted", "Unschedulable", "ModelLoading"]),
        (("answers", "no node", "loads"), ["AllReplicasReady", "Unschedulable", "ModelLoading"]),
        (("zero", "ends", "loads"), ["ScaledToZero", "CrashLooping", "ModelLoading"]),
    ],
    ids=["first", "lost", "broken"],
)
def test_an_api_that_was_not_at_zero_or_has_failed_since_is_not_waking(
    steps: tuple[str, ...], expected: list[str]
) -> None:
    """It is no intent that nobody answers."""
    assert expected == [reason for _, reason, _ in told_of(*steps)]


@pytest.mark.parametrize(
    ("state", "expected", "phase"),
    [
        ({}, ("Unknown", "WebStarting"), "Updating"),
        ({"waiting_reason": "ErrImagePull"}, ("False", "WebNotStarting"), "Degraded"),
    ],
)
def test_replicas_that_still_answer_are_counted_while_an_api_moves_to_a_queue(
    state: dict[str, Any], expected: tuple[str, str], phase: str
) -> None:
    """They are behind the Service until web pods are."""
    web = web_of(NEW, pod("iris-web-1", NEW, "web", ready=False, **state), ready=0, conditions=[])
    made = planned(QUEUE, seen(view(revision=NEW), (*REPLICAS, *WORKERS), web, NEW))

    assert expected == condition(made, "Ready")
    assert phase == made.status["phase"]
    (told,) = (one for one in made.status["conditions"] if "Ready" == one["type"])
    assert told["message"].startswith("2 replicas from before the queue still answer; 0 of 2")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("forbidden: maximum memory usage is 1Ti, but limit is 999P", f"{QUEUE_WEB}.mem: pods"),
        ("forbidden: exceeded quota: few, requested: pods=1", f"{QUEUE_WEB}.maxReplicas: pods"),
        ("Invalid value: spec.containers[0].resources.requests", f"Invalid value: {QUEUE_WEB}"),
    ],
)
def test_a_refusal_of_web_pods_names_their_fields(refusal: str, words: str) -> None:
    """A change to the fields of the model's pods would be of no use."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
               "message": f'pods "iris-web-b2c" {refusal}'}  # fmt: skip
    web = WebView(view("iris-web", revision=NEW, ready=0, conditions=[failure]), None, ())

    made = planned(QUEUE, seen(view(revision=NEW), WORKERS, web, NEW))

    (valid,) = (one for one in made.status["conditions"] if "SpecValid" == one["type"])
    assert "False" == valid["status"]
    assert words in valid["message"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            {"exit_code": 137, "exit_reason": "OOMKilled"},
            f"pod iris-web-1: used more than {QUEUE_WEB}.mem; raise {QUEUE_WEB}.mem",
        ),
        (
            {"waiting_reason": "ErrImagePull", "waiting_message": "denied"},
            "pod iris-web-1: denied; correct spec.predictor.image",
        ),
        (
            {"unschedulable": "Insufficient cpu"},
            f"1 of 1 pods: Insufficient cpu; add nodes, lower {QUEUE_WEB}",
        ),
        (
            {"gone": True, "failure": "Evicted: low on memory", "failed_at": BEFORE},
            "pod iris-web-1: Evicted: low on memory; see the reason",
        ),
    ],
    ids=["memory", "image", "node", "evicted"],
)
def test_why_no_web_pod_starts_is_told(state: dict[str, Any], words: str) -> None:
    """As of replicas, with the fields of web pods; workers answer nobody."""
    web = web_of(NEW, pod("iris-web-1", NEW, "web", ready=False, **state), ready=0)

    made = planned(QUEUE, seen(view(revision=NEW), WORKERS, web, NEW))

    (told,) = (one for one in made.status["conditions"] if "Ready" == one["type"])
    assert ("False", "WebNotStarting") == (told["status"], told["reason"])
    assert told["message"].startswith(f"0 of 2 web pods ready; {words}")
    assert "Error" == made.status["phase"]


@pytest.mark.parametrize("days", [0, 3])
def test_a_web_pod_that_failed_is_forgotten_once_another_has_answered(days: int) -> None:
    """The cluster keeps it for days, and the others are not ready just now."""
    failed_at = BEFORE - timedelta(days=days)
    evicted = pod(
        "iris-web-0", NEW, "web", ready=False, gone=True, failure="Evicted", failed_at=failed_at
    )
    answered = pod(
        "iris-web-1", NEW, "web", ready=False, created=failed_at - timedelta(days=1), was_ready=True
    )
    in_its_place = replace(answered, name="iris-web-2", created=failed_at)
    web = web_of(NEW, evicted, answered, in_its_place, ready=0)

    made = planned(QUEUE, seen(view(revision=NEW), WORKERS, web, NEW))

    assert ("False", "WebStarting") == condition(made, "Ready")
    assert "Pending" == made.status["phase"]


def test_an_api_whose_web_pods_only_start_is_pending() -> None:
    """Its workers are ready, and answer nobody."""
    creating = {"creating_since": BEFORE, "volumes": ("Secret keys",)}
    slow = web_of(NEW, pod("iris-web-1", NEW, "web", ready=False, **creating), ready=0)
    status = planned(QUEUE, seen(view(revision=NEW), WORKERS, slow, NEW)).status

    assert "Pending" == status["phase"]
    assert "or a volume cannot be mounted (Secret keys)" in status["message"]
    assert (
        "Pending"
        == planned(QUEUE, seen(view(revision=NEW), WORKERS, STARTING, NEW)).status["phase"]
    )


def test_a_rollout_is_over_when_that_of_the_web_pods_is() -> None:
    """Half of it is none."""
    web = web_of(NEW, conditions=[], ready=1)
    made = planned(QUEUE, seen(view(revision=NEW), WORKERS, web, NEW))

    assert ("True", "NewRevision") == condition(made, "Progressing")
    assert {"replicas": 2, "readyReplicas": 1, "desiredReplicas": 2} == made.status["web"]
    assert made.status["selector"].endswith(",batchedapi.dev/role=worker")


def test_what_is_not_ours_under_the_name_of_the_web_pods_is_left_alone() -> None:
    """The name may be that of another API's Deployment."""
    body = deployment_body(ownerReferences=[{"kind": "X", "uid": "else", "controller": True}])
    body["metadata"]["name"] = "iris-web"
    foreign = WebView(DeploymentView.of(body))
    made = planned(QUEUE, seen(view(revision=NEW), WORKERS, foreign, NEW))

    assert () == made.apply
    assert ("False", "NotOwned") == condition(made, "SpecValid")
