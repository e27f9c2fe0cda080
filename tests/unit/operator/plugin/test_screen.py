"""The output of `kubectl batchedapi status`, word for word."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin.pages import MethodFigures, Window
from batchedapi_operator.plugin.screen import (
    ReplicaRow,
    ScreenData,
    Terminal,
    as_json,
    conditions_by_urgency,
    screen,
)

GUIDE: Final = Path(__file__).resolve().parents[4] / "docs/guides/looking.md"
PLAIN: Final = Terminal(width=80, has_colours=False, block="#")


def condition(kind: str, status: str, reason: str, message: str = "") -> JsonObject:
    """As in a status."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def pod(name: str, revision: str, *, restarts: int = 0, **state: Any) -> JsonObject:
    """A pod's body; ready unless its container waits."""
    ready = "False" if state.get("waiting") else "True"
    container = {"name": "serving", "restartCount": restarts, "state": state}
    if restarts:
        container["lastState"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    return {
        "metadata": {"name": name, "uid": name, "labels": {"batchedapi.dev/revision": revision}},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [container],
        },
    }


DEPLOYMENT: Final[JsonObject] = {
    "spec": {
        "replicas": 3,
        "template": {"metadata": {"labels": {"batchedapi.dev/revision": "3f2a1b9c"}}},
    },
    "status": {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 2},
}
API: Final[JsonObject] = {
    "metadata": {"namespace": "demo", "name": "sleepy", "generation": 3},
    "status": {
        "observedGeneration": 3,
        "phase": "Degraded",
        "message": "pod sleepy-c: CrashLoopBackOff",
        "url": "http://sleepy.demo.svc/sleepy",
        "desiredReplicas": 5,
        "readyReplicas": 4,
        "revision": {"current": "sleepy-3f2a1b9c"},
        "conditions": [
            condition("Ready", "True", "MinimumReady", "2 of 3 replicas ready"),
            condition("Progressing", "True", "NewRevision", "2 of 3 replicas updated"),
            condition("ModelLoaded", "False", "CrashLooping", "pod sleepy-c: exit code 1: " * 3),
            condition("ScalingLimited", "False", "NotLimited"),
        ],
        "batching": {
            "meanRows": "6.5",
            "maxBatchSize": 8,
            "fullPercent": 54,
            "paddingPercent": 31,
            "rowsPerSecond": "1303.0",
            "batchesPerSecond": "201.0",
            "releaseReasons": {"full": 54, "early": 46},
            "bottleneck": "Lanes",
            "advice": "raise processesPerReplica",
        },
        "recommendation": {
            "maxBatchSize": 24,
            "batchInterval": "10ms",
            "effect": "a replica serves 1310 rows/s instead of 646 rows/s within 100 ms at p99, in"
            " full batches of 15.2 ms instead of 11.9 ms; 1303 rows/s take 2 instead of 3 replicas",
            "time": "2026-11-21T11:58:00Z",
        },
        "autoscaling": {
            "policy": "CapacitySLO",
            "lastDecision": {
                "time": "2026-11-21T12:03:32Z",
                "text": "3 replicas (Demand): 1303 rows/s arrive; one replica sustains 646/s at"
                " p99 <= 100 ms, 93 % of it is used => 2.17",
            },
        },
    },
}
REPLICAS: Final = tuple(
    map(
        ReplicaRow.of,
        (
            pod("sleepy-a", "3f2a1b9c", running={}),
            pod("sleepy-b", "0c5d9e77", restarts=2, running={}),
            pod("sleepy-c", "3f2a1b9c", waiting={"reason": "CrashLoopBackOff"}),
        ),
    )
)
FIGURES: Final = MethodFigures(
    method="predict",
    max_batch_size=8,
    batch_interval=0.01,
    queue_rows=31,
    in_flight=33,
    requests_per_second=940.2,
    rows_received_per_second=1329.0,
    rows_per_second=1303.4,
    batches_per_second=200.5,
    mean_rows=6.5,
    batches_by_rows=((1, 0), (2, 10), (4, 40), (8, 351), (math.inf, 0)),
    released={"early": 184, "full": 217},
    answered={"200": 1869, "429": 1},
    rejected={"latency": 1},
    mean_queue_wait=0.0081,
    mean_batch_seconds=0.01152,
    p50=0.0214,
    p99=math.inf,
    padding=0.31,
)
SEEN: Final = ScreenData(
    api=API,
    deployment=DEPLOYMENT,
    replicas=REPLICAS,
    window=Window((FIGURES,), 2.0, since_start=False),
    pages=2,
)
SCREEN: Final = """\
demo/sleepy: Degraded, pod sleepy-c: CrashLoopBackOff
http://sleepy.demo.svc/sleepy

REPLICAS  3 wanted, 2 ready, 2 of the newest revision
REVISION          PODS  READY  RESTARTS
3f2a1b9c  newest  2     1      0
0c5d9e77  older   1     1      2
pod sleepy-b: ready; 2 restarts, last OOMKilled
pod sleepy-c: CrashLoopBackOff

CONDITIONS
! ModelLoaded False, CrashLooping: pod sleepy-c: exit code 1: pod sleepy-c: exit
  code 1: pod sleepy-c: exit code 1:
- Progressing True, NewRevision: 2 of 3 replicas updated
as usual: Ready, ScalingLimited

BATCHES  of 2 pods within 2.0 s
predict: 6.5 rows each; at most 8, batchInterval 10 ms
    2 ##                                                                     2 %
  3-4 ########                                                              10 %
  5-8 ###################################################################   88 %
  queue 31 rows, in flight 33 requests; 940 requests/s, 1303 rows/s, 200
  batches/s
  answered within 21.4 ms (p50), over 30 s (p99); on average 8.1 ms in the
  queue, 11.5 ms in a batch
  released: full 54 %, early 46 %
  padding: 31 %
  refused rows: latency 1
  answers: 200 100 %, 429 < 1 %

WHY SO MANY
3 replicas (Demand): 1303 rows/s arrive; one replica sustains 646/s at p99 <=
  100 ms, 93 % of it is used => 2.17
decided 2026-11-21T12:03:32Z
bottleneck Lanes: raise processesPerReplica
recommended batching: maxBatchSize 24, batchInterval 10ms: a replica serves 1310
  rows/s instead of 646 rows/s within 100 ms at p99, in full batches of 15.2 ms
  instead of 11.9 ms; 1303 rows/s take 2 instead of 3 replicas"""


def test_the_screen_of_an_api_that_is_rolled_out() -> None:
    """Everything that the issue of an API is looked for in, in 80 columns."""
    shown = screen(SEEN, PLAIN)

    assert SCREEN == shown
    assert 80 >= max(map(len, shown.splitlines()))
    assert shown in GUIDE.read_text()


def test_without_pages_the_figures_are_the_operator_s() -> None:
    """Whoever has but the right to view still sees what the status says, and what is missing."""
    seen = replace(SEEN, deployment=None, window=Window((), 0.0, since_start=True), pages=0)

    shown = screen(replace(seen, missing=("no pages: you may not",)), PLAIN)

    assert "REPLICAS  5 wanted, 4 ready, 0 of the newest revision" in shown
    assert (
        "BATCHES  by the operator's last report\n"
        "6.5 rows each; at most 8; 54 % released full; 1303.0 rows/s; 201.0 batches/s; 31\n"
        "  % padding\n"
        "released: full 54 %, early 46 %\n"
    ) in shown
    assert shown.endswith("\n\nmissing: no pages: you may not")


def test_an_api_that_is_idle_is_shown_since_its_start_and_without_rates() -> None:
    """Rates over an hour would be taken for those of now."""
    idle = Window((FIGURES,), 3600.0, since_start=True)

    shown = screen(replace(SEEN, window=idle, pages=1), PLAIN)

    assert "BATCHES  since the start of 1 pod, 3600 s ago; idle now\n" in shown
    assert "  queue 31 rows, in flight 33 requests\n" in shown
    assert "requests/s" not in shown


def test_an_api_that_was_just_created_says_so() -> None:
    """Nothing is a number yet, and an operator that does not run is the first thing to look at."""
    api = {"metadata": {"namespace": "demo", "name": "new", "generation": 1}}

    shown = screen(ScreenData(api, None, (), Window((), 0.0, since_start=True), 0), PLAIN)

    expected = """\
demo/new: no status yet
the operator has not seen generation 1 yet: what follows is of none; if that
  lasts, see whether the operator runs

REPLICAS  0 wanted, 0 ready, 0 of the newest revision

WHY SO MANY
new: no decision yet; the operator decides every few seconds once a replica is
  ready"""
    assert expected == shown


def test_a_method_without_a_batch_has_no_bars() -> None:
    """Nor latencies, nor reasons."""
    quiet = replace(
        FIGURES,
        mean_rows=None,
        batches_by_rows=((1, 0), (math.inf, 0)),
        released={},
        answered={},
        rejected={},
        p50=None,
        p99=None,
    )

    shown = screen(replace(SEEN, window=Window((quiet,), 2.0, since_start=False)), PLAIN)

    assert "predict: no batches; at most 8, batchInterval 10 ms\n  queue 31 rows" in shown


def test_a_decision_of_before_others_decided_is_not_told_as_that_of_today() -> None:
    """As `why` has it."""
    status = {
        **API["status"],
        "autoscaling": {**API["status"]["autoscaling"], "policy": ""},
        "conditions": [condition("AutoscalingActive", "False", "Off", "spec.replicas decides")],
    }

    shown = screen(replace(SEEN, api={**API, "status": status}), PLAIN)

    assert "nothing is decided now: Off, spec.replicas decides; the last decision:\n" in shown


def test_a_terminal_has_colours_and_obeys_no_message() -> None:
    """A condition's message holds the text of a user's exception."""
    status = {**API["status"], "conditions": [condition("Ready", "False", "X", "a\x1b[2Jb")]}

    shown = screen(
        replace(SEEN, api={**API, "status": status}), Terminal(80, has_colours=True, block="█")
    )

    assert "\x1b[31m\x1b[1m!\x1b[0m Ready False, X: a?[2Jb" in shown
    assert "█" in shown


def test_many_pods_are_not_a_line_each() -> None:
    """One screen; a hundred replicas that wait for nodes would push it away."""
    many = tuple(
        ReplicaRow.of(pod(f"p{n}", "3f2a1b9c", waiting={"reason": "ErrImagePull"}))
        for n in range(10)
    )

    shown = screen(replace(SEEN, replicas=many), PLAIN)

    assert 8 == shown.count(": ErrImagePull")
    assert "and 2 more pods like these: -o json has all" in shown


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (pod("p", "r", running={}), "ready"),
        (pod("p", "r", waiting={"reason": "ErrImagePull"}), "ErrImagePull"),
        ({"metadata": {"name": "p", "uid": "u"}, "status": {}}, "starting"),
        ({"metadata": {"name": "p", "uid": "u", "deletionTimestamp": "2026"}}, "ending"),
        (
            {
                "metadata": {"name": "p", "uid": "u"},
                "status": {
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                    ]
                },
            },
            "without a node",
        ),
        (
            {
                "metadata": {"name": "p", "uid": "u"},
                "status": {
                    "initContainerStatuses": [{"name": "i", "state": {"running": {}}}],
                    "containerStatuses": [
                        {"name": "serving", "state": {"waiting": {"reason": "PodInitializing"}}}
                    ],
                },
            },
            "InitContainerRunning",
        ),
        (
            {
                "metadata": {"name": "p", "uid": "u"},
                "status": {
                    "containerStatuses": [
                        {"name": "serving", "state": {"running": {}}, "started": True}
                    ],
                },
            },
            "NotAnswering",
        ),
    ],
)
def test_a_pod_is_told_in_a_word(body: JsonObject, state: str) -> None:
    """By what it waits for."""
    assert state == ReplicaRow.of(body).state


@pytest.mark.parametrize(
    ("one", "urgency"),
    [
        (condition("Ready", "False", "ModelLoading"), 0),
        (condition("ModelLoaded", "Unknown", "ModelLoading"), 0),
        (condition("Progressing", "False", "ProgressDeadlineExceeded"), 0),
        (condition("Stalled", "True", "Whatever"), 0),
        (condition("Reconciling", "True", "Whatever"), 1),
        (condition("Progressing", "True", "NewRevision"), 1),
        (condition("SpecAdvice", "True", "BatchedOneByOne"), 1),
        (condition("ScalingLimited", "True", "AtMax"), 1),
        (condition("SpecAdvice", "False", "NothingToSay"), 2),
        (condition("Ready", "True", "AllReplicasReady"), 2),
        (condition("OfALaterVersion", "False", "Whatever"), 0),
    ],
    ids=lambda value: f"{value['type']} {value['status']}" if isinstance(value, dict) else "",
)
def test_conditions_are_told_by_how_much_they_matter(one: JsonObject, urgency: int) -> None:
    """Some say something while they are True, most while they are not."""
    assert [one] == conditions_by_urgency([one])[urgency]


def test_as_json_it_is_what_the_guide_lists() -> None:
    """Programs read it: what is there stays, with its name."""
    told = as_json(SEEN)

    assert told == json.loads(json.dumps(told, allow_nan=False))
    assert {"wanted": 3, "ready": 2, "updated": 2, "existing": 3} == told["replicas"]
    assert {"seconds": 2.0, "sinceStart": False, "pods": 2} == told["window"]
    assert [("3f2a1b9c", True, 2, 1, 0), ("0c5d9e77", False, 1, 1, 2)] == [
        tuple(one.values()) for one in told["revisions"]
    ]
    (method,) = told["methods"]
    words = set(re.findall("`[^`]+`", GUIDE.read_text().partition("### As JSON")[2]))
    assert [] == [name for name in (*told, *method) if not {f"`{name}`", f"`{name}[]`"} & words]
    assert (6.5, 0.0214, None) == (method["meanRows"], method["p50"], method["p99"])
    assert {"upTo": None, "batches": 0} == method["batchesByRows"][-1]
    assert API["status"]["autoscaling"]["lastDecision"] == told["decision"]


def test_an_api_with_one_queue_shows_who_answers_and_what_waits() -> None:
    """Both roles are on the screen, each by itself."""
    status = {
        **API["status"],
        "web": {"desiredReplicas": 2, "readyReplicas": 2, "replicas": 2},
        "queue": {"rows": 31, "oldestSeconds": "0.4", "webReason": "2 web pods: little CPU"},
    }
    web = tuple(ReplicaRow.of(pod(f"sleepy-web-{n}", "3f2a1b9c", running={})) for n in range(2))
    seen = replace(SEEN, api={**API, "status": status}, web=web)

    shown, told = screen(seen, PLAIN), as_json(seen)

    assert "WEB PODS  2 wanted, 2 ready\nQUEUE  31 rows wait, the oldest for 0.4 s\n" in shown
    assert "2 web pods: little CPU" in shown
    assert (31, 2) == (told["queue"]["rows"], told["web"]["desiredReplicas"])
    assert "sleepy-web-1" in [one["name"] for one in told["pods"]]
    assert "WEB PODS" not in screen(SEEN, PLAIN)
