"""`cleared`: which foreign fields are taken away, and which stay."""

import copy
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.reconcile.execute import cleared

OURS = {"name": "http", "port": 80, "protocol": "TCP"}
THEIRS = {"name": "http", "port": 81, "protocol": "TCP"}
KEPT = {"name": "kept", "port": 82, "protocol": "TCP"}
PORTS = {"spec": {"ports": [OURS]}}


def item(port: int) -> JsonObject:
    """Ownership of a port."""
    key = f'k:{{"port":{port},"protocol":"TCP"}}'
    return {key: {".": {}, "f:name": {}, "f:port": {}}}


def entry(manager: str, fields: JsonObject, operation: str = "Update", **more: Any) -> JsonObject:
    """An entry of managedFields."""
    return {"manager": manager, "operation": operation, "fieldsV1": fields, **more}


def ports(*found: JsonObject) -> JsonObject:
    """Ownership of ports of a Service."""
    return {"f:spec": {"f:ports": {key: value for one in found for key, value in one.items()}}}


def live(spec: JsonObject, ours: JsonObject, *foreign: JsonObject) -> JsonObject:
    """An object with those who own it."""
    entries = [entry(contract.FIELD_MANAGER, ours, "Apply"), *foreign]
    return {"metadata": {"managedFields": entries}, "spec": spec}


def test_a_port_under_the_name_of_ours_goes_and_another_stays() -> None:
    """Two ports of one name are refused; a port of another name is nobody's business."""
    body = live(
        {"ports": [THEIRS, KEPT]},
        {"f:metadata": {"f:labels": {"f:a": {}}}},
        entry("somebody", ports(item(81), item(82))),
    )
    before = copy.deepcopy(body)

    managed = cleared(body, PORTS, ["spec.ports[1].name"])

    assert managed is not None
    assert {"f:metadata": {"f:labels": {"f:a": {}}}, **ports(item(81))} == managed[0]["fieldsV1"]
    assert ports(item(82)) == managed[1]["fieldsV1"]
    assert before == body


def test_another_kind_of_probe_goes_whichever_of_the_two_is_named() -> None:
    """The apiserver names the second that it finds; a struct that is left empty is not owned."""
    probe: JsonObject = {"f:spec": {"f:probe": {"f:httpGet": {}}}}
    ours = {"spec": {"probe": {"httpGet": {}}}}
    theirs = {"f:spec": {"f:probe": {"f:exec": {"f:command": {}}}}}
    spec = {"probe": {"exec": {"command": ["true"]}, "httpGet": {}}}

    for named in ("spec.probe.httpGet", "spec.probe.exec"):
        managed = cleared(live(spec, probe, entry("somebody", theirs)), ours, [named])
        assert managed is not None
        both = {"f:httpGet": {}, "f:exec": {"f:command": {}}}
        assert {"f:spec": {"f:probe": both}} == managed[0]["fieldsV1"]
        assert {} == managed[1]["fieldsV1"]


@pytest.mark.parametrize(
    ("foreign", "named"),
    [
        pytest.param(ports(item(82)), "spec.ports[0].name", id="another name"),
        pytest.param({"f:spec": {"f:replicas": {}}}, "spec.ports", id="beside a field of the spec"),
        pytest.param({"f:spec": {"f:size": {}}}, "spec.width", id="another field"),
        pytest.param({"f:spec": {"f:ports": {}}}, "spec.ports", id="ours as well"),
    ],
)
def test_what_excludes_nothing_of_ours_stays(foreign: JsonObject, named: str) -> None:
    """The replicas above all: without an owner they would be one."""
    body = live({"ports": [OURS, KEPT]}, {"f:spec": {"f:ports": {}}}, entry("somebody", foreign))

    ours = {"spec": {"ports": [OURS], "width": 1}}

    assert cleared(body, ours, [named]) is None


def test_of_a_list_that_is_no_longer_there_nothing_is_taken() -> None:
    """Items of an item that has gone, and of a list that we do not have."""
    nested = {"f:spec": {"f:boxes": {'k:{"name":"a"}': {"f:ports": item(81)}}}}
    body = live({"boxes": []}, {"f:metadata": {}}, entry("somebody", nested))

    assert cleared(body, {"spec": {"boxes": []}}, ["spec.boxes[0].ports[0].name"]) is None
    assert cleared(body, {"spec": {}}, ["spec.boxes[0].ports[0].name"]) is None


def test_without_an_owner_of_our_own_nothing_is_taken() -> None:
    """An apply of ours removes what it has owned, and it has owned nothing."""
    body = live({"ports": [THEIRS]}, {}, entry("somebody", ports(item(81))))
    body["metadata"]["managedFields"][0]["subresource"] = "status"

    assert cleared(body, PORTS, ["spec.ports[1].name"]) is None
    assert cleared({"metadata": {}}, PORTS, ["spec.ports[1].name"]) is None


def test_fields_of_a_subresource_stay() -> None:
    """A status is another writer's."""
    body = live({"ports": [THEIRS]}, {}, entry("x", ports(item(81)), subresource="status"))

    assert cleared(body, PORTS, ["spec.ports[1].name"]) is None
