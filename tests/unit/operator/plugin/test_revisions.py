"""`kubectl batchedapi history`, `rollback` and `promote` against an apiserver over a socket."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.operator.plugin.test_command_line import API, Cluster, apiserver

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin.__main__ import main
from batchedapi_operator.resources.revised import MOST_LENGTH, noted

__all__ = ["apiserver"]

SETS: Final = "/apis/apps/v1/namespaces/demo/replicasets"
FILES: Final = "/api/v1/namespaces/demo/configmaps/"
FIRST: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "source": {"configMap": "iris-model"}},
    "compute": {"cpu": "1"},
    "networking": {"endpoint": "/iris", "service": {"port": 80}},
    "autoscaling": {"maxReplicas": 2},
}
SECOND: Final[JsonObject] = {
    "predictor": {**FIRST["predictor"], "image": "iris:2", "config": {"k": 2}},
    "compute": {"cpu": "2", "mem": "1Gi"},
    "overload": {"timeout": "9s"},
    "networking": {"endpoint": "/other", "service": {"port": 81}},
    "autoscaling": {"maxReplicas": 9},
}
TRIED: Final[JsonObject] = {
    "current": "iris-a", "canary": "iris-b", "canarySince": "2026-01-02T03:04:05Z",
}  # fmt: skip


def replica_set(
    number: int, digest: str, spec: JsonObject | None, ready: int = 0, owner: str = "iris"
) -> JsonObject:
    """One, as the Deployment's controller keeps it."""
    annotations = {"deployment.kubernetes.io/revision": str(number)}
    return {
        "metadata": {
            "name": f"{owner}-{number}",
            "creationTimestamp": f"2026-01-02T03:04:0{number}Z",
            "labels": {contract.LABEL_API: "iris", contract.LABEL_REVISION: digest},
            "annotations": annotations if spec is None else annotations | noted(spec),
            "ownerReferences": [{"kind": "Deployment", "name": owner, "controller": True}],
        },
        "status": {"replicas": max(1, ready), "readyReplicas": ready},
    }


def config_map(**data: str) -> JsonObject:
    """A ConfigMap with those files."""
    return {"metadata": {"name": "any"}, "data": {f"{name}.py": data[name] for name in data}}


@dataclass
class Rolled(Cluster):
    """An API that has had several revisions."""

    sets: list[JsonObject] = field(default_factory=list)
    refuses: int = 0
    """Status of the answer to a change."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As the apiserver does."""
        if request.path == SETS:
            assert "batchedapi.dev/api=iris" == request.query["labelSelector"]
            return web.json_response({"kind": "ReplicaSetList", "items": self.sets})
        if request.method != "PATCH":
            return await super().answer(request)
        if self.refuses == 502:
            return web.Response(text="<html>", status=502)
        if self.refuses:
            told = {"kind": "Status", "message": "spec.overload: no"}
            return web.json_response(told, status=self.refuses)
        assert "kubectl-batchedapi" == request.query["fieldManager"]
        if request.headers["Content-Type"] == "application/merge-patch+json":
            self.objects[request.path] |= await request.json()
            return web.json_response(self.objects[request.path])
        assert "application/json-patch+json" == request.headers["Content-Type"]
        for one in await request.json():
            assert "add" == one["op"]
            self.spec[one["path"].removeprefix("/spec/")] = one["value"]
        return web.json_response(self.objects[request.path])

    @property
    def spec(self) -> JsonObject:
        """Of the API."""
        spec: JsonObject = self.objects[API]["spec"]
        return spec


@pytest.fixture
def cluster() -> Rolled:
    """The second revision is rolled out, and the first one answers."""
    held = {"type": "Compared", "status": "False", "reason": "Slower"}
    return Rolled(
        {
            API: {"spec": deepcopy(SECOND), "status": {"conditions": [held]}},
            f"{FILES}iris-model": config_map(model="one"),
            f"{FILES}iris-aaaaaaaa": config_map(model="one")
            | {"data": {"model.py": "one", contract.MANIFEST_FILE: "spec: {}"}},
        },
        sets=[
            replica_set(1, "aaaaaaaa", FIRST, ready=2),
            replica_set(7, "bbbbbbbb", SECOND, owner="iris-web"),
            replica_set(2, "bbbbbbbb", SECOND),
        ],
    )


def run(*arguments: str) -> Result:
    """Run the plugin."""
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("apiserver")
def test_revisions_are_listed_the_newest_first_with_what_changed(cluster: Rolled) -> None:
    """The number is the Deployment's, and web pods have a Deployment of their own."""
    cluster.sets += [
        replica_set(3, "bbbbbbbb", SECOND),
        replica_set(4, "cccccccc", SECOND),
        replica_set(5, "dddddddd", None),
    ]

    told = run("history", "iris")

    assert 0 == told.exit_code, told.output
    assert [
        ["REVISION", "DIGEST", "CREATED", "READY", "COMPARED", "CHANGED"],
        ["5", "dddddddd", "2026-01-02T03:04:05Z", "0/1", "Slower", "not known"],
        ["4", "cccccccc", "2026-01-02T03:04:04Z", "0/1", "-", "files of predictor.source"],
        ["3", "bbbbbbbb", "2026-01-02T03:04:03Z", "0/1", "-", "its pods alone"],
        ["2", "bbbbbbbb", "2026-01-02T03:04:02Z", "0/1", "-",
         "compute.cpu, compute.mem, networking.endpoint, 3 more"],
        ["1", "aaaaaaaa", "2026-01-02T03:04:01Z", "2/2", "-", "-"],
    ] == [line.split(maxsplit=5) for line in told.output.splitlines()]  # fmt: skip


@pytest.mark.usefixtures("apiserver")
def test_as_json_a_revision_has_all_that_changed() -> None:
    """For programs."""
    newest, oldest = json.loads(run("history", "iris", "-o", "json").output)

    assert ("Slower", None) == (newest["compared"], oldest["compared"])
    assert ["predictor.config", "predictor.image"] == newest["changed"][-2:]
    assert (1, "aaaaaaaa", 2, 2, None) == tuple(
        oldest[name] for name in ("revision", "digest", "pods", "ready", "changed")
    )


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("to", [(), ("--to", "1"), ("--to", "aaaaaaaa")])
def test_the_spec_goes_back_and_what_is_no_revisions_stays(
    cluster: Rolled, to: tuple[str, ...]
) -> None:
    """How many replicas there may be, and at which address, has changed for other reasons."""
    told = run("rollback", "iris", *to)

    assert 0 == told.exit_code, told.output
    assert {
        "predictor": FIRST["predictor"],
        "compute": FIRST["compute"],
        "overload": {},
        "networking": {"endpoint": "/iris", "service": {"port": 81}},
        "autoscaling": {"maxReplicas": 9},
    } == cluster.spec
    first, git = told.output.splitlines()
    assert first.startswith("iris has the spec of revision 1 (aaaaaaaa): compute.cpu, compute.mem,")
    assert "Git" in git


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("now", [None, config_map(model="two"), config_map(model="one", more="")])
def test_files_that_have_changed_come_from_the_copy_that_the_revision_keeps(
    cluster: Rolled, now: JsonObject | None
) -> None:
    """The user's own ConfigMap is not written: others may read it, too."""
    cluster.objects[f"{FILES}iris-model"] = now or {}

    told = run("rollback", "iris")

    assert {"configMap": "iris-aaaaaaaa"} == cluster.spec["predictor"]["source"]
    assert "no longer in the ConfigMap of its source, but in iris-aaaaaaaa\n" in told.output


@pytest.mark.usefixtures("apiserver")
def test_a_spec_that_was_never_rolled_out_goes_back_to_the_newest_that_was(cluster: Rolled) -> None:
    """It may be one that cannot be used."""
    cluster.objects[f"{FILES}iris-bbbbbbbb"] = cluster.objects[f"{FILES}iris-aaaaaaaa"]
    cluster.spec["compute"] = {"cpu": "none"}

    assert "has the spec of revision 2 (bbbbbbbb): compute" in run("rollback", "iris").output
    assert SECOND == cluster.spec


@pytest.mark.usefixtures("apiserver")
def test_files_alone_may_have_changed(cluster: Rolled) -> None:
    """Then there is one spec, and two revisions."""
    cluster.objects[API]["spec"] = {**deepcopy(FIRST)}
    cluster.objects[f"{FILES}iris-model"] = config_map(model="two")
    cluster.sets[2] = replica_set(2, "bbbbbbbb", FIRST)

    told = run("rollback", "iris")

    assert "revision 1 (aaaaaaaa): predictor.source.configMap" in told.output
    assert {"configMap": "iris-aaaaaaaa"} == cluster.spec["predictor"]["source"]


@pytest.mark.usefixtures("apiserver")
def test_what_auto_rollback_has_given_up_is_what_the_spec_asks_for(cluster: Rolled) -> None:
    """Though the newest is the one that it went back to, and files alone differ."""
    cluster.sets = [replica_set(2, "bbbbbbbb", FIRST), replica_set(3, "aaaaaaaa", FIRST, ready=2)]
    revision = {"current": "iris-aaaaaaaa", "rolledBack": "iris-bbbbbbbb"}
    cluster.objects[API] = {"spec": deepcopy(FIRST), "status": {"revision": revision}}
    cluster.objects[f"{FILES}iris-model"] = config_map(model="two")

    told = run("rollback", "iris")

    assert 0 == told.exit_code, told.output
    assert "iris-aaaaaaaa" == cluster.spec["predictor"]["source"]["configMap"]


@pytest.mark.usefixtures("apiserver")
def test_a_revision_that_is_asked_for_already_is_not_written(cluster: Rolled) -> None:
    """It would be a change of generation, and of the fields' owner."""
    cluster.refuses = 500
    cluster.objects[API]["spec"] = {**deepcopy(FIRST), "autoscaling": {}}

    told = run("rollback", "iris", "--to", "1")

    assert (0, True) == (told.exit_code, "nothing had to be changed" in told.output)


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({"sets": []}, "iris: there is no other revision; there are: none"),
        ({"sets": [replica_set(2, "bbbbbbbb", SECOND)]}, "there are: 2"),
        ({"sets": [replica_set(1, "aaaaaaaa", None)]}, "the spec of revision 1 was not kept"),
        ({"refuses": 403}, "takes `patch` on batchedapis, which whoever has the ClusterRole edit"),
        ({"refuses": 502}, "Error: apiserver: 502 Bad Gateway\n"),
        ({"refuses": 422}, "Error: apiserver: 422 spec.overload: no\n"),
    ],
)
def test_a_rollback_that_cannot_be_is_told_and_nothing_is_changed(
    cluster: Rolled, world: dict[str, Any], words: str
) -> None:
    """With what there is, or the right that it takes."""
    for name, value in world.items():
        setattr(cluster, name, value)

    told = run("rollback", "iris")

    assert (1, True) == (told.exit_code, words in told.output), told.output
    assert SECOND == cluster.spec


@pytest.mark.usefixtures("apiserver")
def test_files_that_nobody_has_any_more_are_told(cluster: Rolled) -> None:
    """Without them it would be another revision."""
    del cluster.objects[f"{FILES}iris-aaaaaaaa"]

    told = run("rollback", "iris")

    assert (1, "Error: ConfigMap 'iris-aaaaaaaa', which had the files, is gone\n") == (
        told.exit_code, told.output,
    )  # fmt: skip
    assert SECOND == cluster.spec


@pytest.mark.usefixtures("apiserver")
def test_a_model_in_an_image_has_no_files(cluster: Rolled) -> None:
    """Nothing is asked about them."""
    cluster.sets[0] = replica_set(1, "aaaaaaaa", {"predictor": {"path": "model:Iris"}})
    cluster.objects = {API: cluster.objects[API]}

    assert 0 == run("rollback", "iris").exit_code
    assert {"path": "model:Iris"} == cluster.spec["predictor"]


def test_a_spec_that_is_too_long_for_an_annotation_is_not_kept() -> None:
    """The apiserver would refuse the Deployment."""
    assert {} == noted({"predictor": {"config": "x" * MOST_LENGTH}})


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize("text", ["{", "[]"])
def test_an_annotation_of_somebody_elses_says_nothing(cluster: Rolled, text: str) -> None:
    """And breaks nothing."""
    cluster.sets[0]["metadata"]["annotations"][contract.ANNOTATION_SPEC] = text

    assert "not known" in run("history", "iris").output


@pytest.mark.usefixtures("apiserver")
def test_the_canary_that_runs_is_promoted_by_its_name_and_its_begin(cluster: Rolled) -> None:
    """So a revision that takes its place meanwhile is not, nor the same one when it is back."""
    cluster.objects[API]["status"]["revision"] = {**TRIED}

    told = run("promote", "iris")

    assert (0, "iris: revision iris-b will be rolled out\n") == (told.exit_code, told.output)
    annotations = {contract.ANNOTATION_PROMOTE: "iris-b@2026-01-02T03:04:05Z"}
    assert {"annotations": annotations} == cluster.objects[API]["metadata"]


@pytest.mark.usefixtures("apiserver")
def test_while_it_is_paused_nothing_is_promoted(cluster: Rolled) -> None:
    """Else it would take over whenever that ends, unseen."""
    cluster.objects[API]["status"]["revision"] = {**TRIED}
    cluster.objects[API]["spec"]["paused"] = True

    told = run("promote", "iris")

    assert 1 == told.exit_code
    assert "iris: nothing is rolled out while spec.paused is true" in told.output
    assert "metadata" not in cluster.objects[API]


@pytest.mark.usefixtures("apiserver")
def test_without_a_canary_nothing_is_promoted(cluster: Rolled) -> None:
    """Not even what was given up."""
    cluster.objects[API]["status"]["revision"] = {"current": "iris-a", "rolledBack": "iris-b"}

    told = run("promote", "iris")

    assert (1, "Error: iris: no canary runs\n") == (told.exit_code, told.output)
    assert "metadata" not in cluster.objects[API]
