"""Fields that went: an old manifest still works, says so, and starts no pod anew."""

from typing import Any

import pytest
from crds.reference import spec_fields

from batchedapi_core import contract
from batchedapi_core.manifest import UnknownFields, parse_api, serving_slice
from batchedapi_core.manifest.removed import REMOVED


def document(predictor: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A manifest with those sections."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "iris"},
        "spec": {"predictor": {"path": "model:Iris", **(predictor or {})}, **spec},
    }


def test_a_manifest_has_at_most_143_fields() -> None:
    """As the reference counts them; a new field is one more thing to know, so another must go."""
    assert len(spec_fields()) <= 143


@pytest.mark.parametrize("unknown", UnknownFields)
def test_every_removed_field_is_accepted_with_the_remedy(unknown: UnknownFields) -> None:
    """On a laptop, in the operator, and in a replica that an older operator wrote for."""
    warnings: list[str] = []
    method = {"strategy": "Fixed", "sizeUnit": "Requests", "preferredBatchSizes": [2]}
    method["shapePolicy"] = "Bucket"
    old = document(
        {
            "threadSafe": False,
            "source": {"inImage": {}},
            "methods": [{"name": "a", "serverSideBatching": {**method, "queueOrder": "FIFO"}}],
        },
        serverSideBatching={
            "enabled": False,
            "tuning": "Off",
            "shapePolicy": "Pad",
            "preferredBatchSizes": [4],
        },
        autoscaling={"initReplicas": 3},
    )

    api = parse_api(old, unknown, warnings.append)

    for field in REMOVED:
        path = f"spec.{field.path}".replace("[]", "[0]")
        assert f"{path}: removed, and refused by the next release; {field.instead}" in warnings
    assert len(REMOVED) == len(warnings)
    assert tuple(warnings) == api.warnings
    assert api.spec.predictor.source is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            document(
                {"methods": [{"name": "a", "serverSideBatching": {"maxBatchSize": 8}}]},
                serverSideBatching={"enabled": False, "maxBatchSize": 9},
            ),
            document(
                {"methods": [{"name": "a", "serverSideBatching": {"maxBatchSize": 1}}]},
                serverSideBatching={"maxBatchSize": 1},
            ),
        ),
        (document({"source": {"inImage": {}}}), document()),
        (
            document({"source": {"configMap": "a", "inImage": {}}}),
            document({"source": {"configMap": "a"}}),
        ),
        (document({"threadSafe": False}), document()),
    ],
    ids=["batching off", "code in the image", "code in a ConfigMap", "one thread"],
)
def test_it_means_its_new_spelling(old: dict[str, Any], new: dict[str, Any]) -> None:
    """B15: batching that was turned off stays off, for every method."""
    assert parse_api(old).spec == parse_api(new).spec


@pytest.mark.parametrize(
    "old",
    [
        document(serverSideBatching={"enabled": False, "maxBatchSize": 9}),
        document({"threadSafe": False}),
        document({"methods": [{"name": "a", "serverSideBatching": {"strategy": "Fixed"}}]}),
    ],
    ids=["batching off", "one thread", "a method"],
)
def test_a_replica_is_still_given_what_was_written(old: dict[str, Any]) -> None:
    """Its manifest names the revision: an upgrade of the operator must roll nothing."""
    told = serving_slice(parse_api(old))["spec"]

    for section in ("predictor", "serverSideBatching"):
        assert old["spec"].get(section, {}).items() <= told[section].items()
    assert parse_api(old).spec.predictor == parse_api(serving_slice(parse_api(old))).spec.predictor


@pytest.mark.parametrize(
    ("api", "method", "pads"),
    [
        (None, None, (False, False)),
        ("Reject", None, (False, False)),
        ("Pad", None, (True, True)),
        ("Pad", "Bucket", (True, False)),
        (None, "Pad", (False, True)),
    ],
)
def test_who_padded_pads_for_one_more_release(
    api: str | None, method: str | None, pads: tuple[bool, bool]
) -> None:
    """A model that was fast would be slow until its author has written the new word."""
    own = {"name": "a", "serverSideBatching": {"shapePolicy": method} if method else None}
    batching = {"shapePolicy": api} if api else {}

    parsed = parse_api(document({"methods": [own]}, serverSideBatching=batching))
    again = parse_api(serving_slice(parsed))

    for one in (parsed, again):
        assert pads == (one.pads(), one.pads("predictor", "methods", 0))


def test_the_defaults_that_clusters_have_stored_need_no_warning() -> None:
    """The API server wrote them; no user did."""
    stored = document(
        {"threadSafe": True},
        serverSideBatching={
            "enabled": True,
            "tuning": "Recommend",
            "shapePolicy": "Bucket",
            "preferredBatchSizes": [],
        },
    )

    assert () == parse_api(stored).warnings
    assert serving_slice(parse_api(document())) == serving_slice(parse_api(stored))


@pytest.mark.parametrize(
    "spec", [None, [], {"predictor": []}, {"predictor": {"methods": [1]}}], ids=str
)
def test_what_is_no_manifest_is_left_to_the_other_checks(spec: Any) -> None:
    """They name the place."""
    with pytest.raises(ValueError, match="spec"):
        parse_api({**document(), "spec": spec})
