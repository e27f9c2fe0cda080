"""Messages about a manifest: the field as kubectl names it, and the text to write instead."""

from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ManifestError, UnknownFields, parse_api
from batchedapi_core.manifest.rules import PERCENT, WORDS
from batchedapi_core.manifest.units import DURATION_PATTERN, QUANTITY_PATTERN


def document(spec: Any = None, **parts: Any) -> dict[str, Any]:
    """A good document with `spec` over the least that is needed."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "iris"},
        "spec": {"predictor": {"path": "model:Iris"}, **(spec or {})},
        **parts,
    }


def problems(body: Any) -> list[str]:
    """Why it is refused."""
    with pytest.raises(ManifestError) as caught:
        parse_api(body)
    return list(caught.value.problems)


def predictor(**fields: Any) -> dict[str, Any]:
    """A spec with these beside the path."""
    return {"predictor": {"path": "m:C", **fields}}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"serverSideBatching": {"max_batch_size": 5}},
            "spec.serverSideBatching.max_batch_size: unknown field; did you mean maxBatchSize?",
        ),
        (
            {"server_side_batching": {}},
            "spec.server_side_batching: unknown field; did you mean serverSideBatching?",
        ),
        (
            {"serverSideBatching": {"max_latency_ms": 500}},
            "spec.serverSideBatching.max_latency_ms: unknown field; did you mean maxLatency?",
        ),
        (predictor(workers=4), ("spec.predictor.workers: unknown field; did you mean"
         " processesPerReplica?")),
        (
            predictor(maxBatchSize=4),
            ("spec.predictor.maxBatchSize: unknown field; did you mean"
            " spec.serverSideBatching.maxBatchSize?"),
        ),
        (
            predictor(methods=[{"name": "a"}, {"name": "b", "bachable": True}]),
            "spec.predictor.methods[1].bachable: unknown field; did you mean batchable?",
        ),
        ({"replica": 3}, "spec.replica: unknown field; did you mean replicas?"),
        (predictor(name="x"), "spec.predictor.name: unknown field; did you mean metadata.name?"),
        ({"gpuType": "t4"}, "spec.gpuType: unknown field; see the reference"),
    ],
    ids=str,
)  # fmt: skip
def test_an_unknown_field_is_told_the_field_that_was_meant(
    spec: dict[str, Any], problem: str
) -> None:
    """Other servers' spellings above all: they look right to whoever comes from there."""
    (only,) = problems(document(spec))

    assert only.startswith(problem)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"serverSideBatching": {"batchInterval": 0.1}},
            (
                "spec.serverSideBatching.batchInterval: expected a duration such as 5ms, 2s or"
                " 1m30s, got 0.1; 0.1 seconds are written 100ms"
            ),
        ),
        (
            {"overload": {"timeout": 30}},
            (
                "spec.overload.timeout: expected a duration such as 5ms, 2s or 1m30s, got 30;"
                " 30 seconds are written 30s"
            ),
        ),
        (
            {"overload": {"timeout": -1}},
            "spec.overload.timeout: expected a duration such as 5ms, 2s or 1m30s, got -1",
        ),
        (
            {"overload": {"timeout": True}},
            "spec.overload.timeout: expected a duration such as 5ms, 2s or 1m30s, got True",
        ),
        (
            {"serverSideBatching": {"batchInterval": "61s"}, "overload": {"timeout": "0s"}},
            "spec.serverSideBatching.batchInterval: expected 0s to 60s, got 61s",
        ),
        (
            {"compute": {"cpu": 0.5}},
            (
                "spec.compute.cpu: expected a quantity such as 500m, 2 or 1Gi, got 0.5;"
                ' write "0.5", in quotes'
            ),
        ),
        (
            {"compute": {"cpu": 2**63}},
            f"spec.compute.cpu: expected a quantity such as 500m, 2 or 1Gi, got {2**63}",
        ),
        (
            {"autoscaling": {"mode": False}},
            (
                "spec.autoscaling.mode: Input should be 'Native', 'External' or 'Off', got False;"
                " YAML takes On, Yes, Off and No for true and false: write the word in quotes"
            ),
        ),
        (
            predictor(env=[{"name": "A", "value": 1}]),
            'spec.predictor.env[0].value: expected a text, got 1; write it in quotes: "1"',
        ),
        (
            {"serverSideBatching": {"maxBatchSize": "5"}},
            "spec.serverSideBatching.maxBatchSize: expected a whole number, got '5'",
        ),
        (
            {"serverSideBatching": {"maxBatchSize": True}},
            "spec.serverSideBatching.maxBatchSize: expected a whole number, got True",
        ),
        ({"compute": []}, "spec.compute: expected an object, got []"),
        (predictor(env={}), "spec.predictor.env: expected a list, got {}"),
        ({"paused": "yes"}, "spec.paused: expected true or false, got 'yes'"),
        (
            {"updateStrategy": {"maxSurge": "3"}},
            (
                "spec.updateStrategy.maxSurge: expected a whole number or a percentage such as 25%,"
                " got '3'"
            ),
        ),
        (
            {"updateStrategy": {"maxSurge": 2**63}},
            (
                "spec.updateStrategy.maxSurge: expected a whole number or a percentage such as 25%,"
                f" got {2**63}"
            ),
        ),
        (
            predictor(methods=[{"name": "a"}, {"name": "b", "outputBatchDim": 1}]),
            (
                "spec.predictor.methods[1].outputBatchDim: spec.predictor.methods[].outputBatchDim"
                " needs batchDim beside it"
            ),
        ),
        (
            predictor(env=[{"name": "A"}, {"name": "A"}]),
            "spec.predictor.env[1]: expected each only once, got 'A' twice",
        ),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_the_right_form(spec: dict[str, Any], problem: str) -> None:
    """Seconds without a unit, words that YAML reads as flags, numbers in quotes."""
    assert [problem] == problems(document(spec))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (document(sepc={}), "sepc: unknown field; did you mean spec?"),
        (document(status={"phase": 1, "foo": 1}), "status.foo: unknown field; leave status out"),
        (document(metadata={"name": "a", "lables": {}}), "metadata.lables: unknown field; did you"),
        (document(metadata=[]), "metadata: expected an object, got []"),
        (document(metadata={"name": "a", "labels": {"a": 1}}), "metadata.labels.a: expected a"),
        (
            document(metadata={"name": "a", "labels": {"a": "b c"}}),
            "metadata.labels: expected values of at most 63 letters",
        ),
        (
            document(metadata={"name": "a", "labels": {"a b": "c"}}),
            "metadata.labels: expected keys of letters, digits",
        ),
        (
            document(metadata={"name": "a", "annotations": {"a b": "c"}}),
            "metadata.annotations: expected keys",
        ),
        (document(metadata={"name": "a", "generation": "3"}), "metadata.generation: expected a"),
    ],
    ids=str,
)
def test_what_stands_beside_the_spec_is_judged_too(body: dict[str, Any], expected: str) -> None:
    """A slip in `spec:` itself would be found by nobody else."""
    (only,) = problems(body)

    assert only.startswith(expected)


def test_problems_beside_the_spec_and_in_it_are_told_together() -> None:
    """One run, all of them."""
    places = {line.partition(":")[0] for line in problems(document({"replica": 1}, sepc={}))}

    assert {"sepc", "spec.replica"} == places


def test_labels_and_annotations_of_all_kinds_are_taken() -> None:
    """Metadata that kubectl and Helm write is none of our business."""
    metadata = {
        "name": "a",
        "labels": {"a": None, "b": "", "example.com/c": "d_e.f-g"},
        "annotations": {"Example.com/h": "any text at all"},
        "creationTimestamp": None,
        "managedFields": [{"manager": "kubectl"}],
    }

    assert "a" == parse_api(document(metadata=metadata)).metadata.name


def test_what_a_newer_operator_writes_is_not_judged_beside_the_spec() -> None:
    """A replica may be older than what hands it its manifest."""
    body = document(metadata={"name": "a", "later": 1}, later={})

    assert "a" == parse_api(body, UnknownFields.IGNORE).metadata.name


OWN_WORDS = {"^Auto$", "^Platform$", "^cpu_count$", PERCENT, DURATION_PATTERN, QUANTITY_PATTERN}
"""Patterns of fields that are read by code of ours, which has its own words."""


def patterns(value: Any) -> set[str]:
    """Every pattern of a schema."""
    if isinstance(value, dict):
        own = {value["pattern"]} if isinstance(value.get("pattern"), str) else set()
        return own.union(*map(patterns, value.values()))
    return set().union(*map(patterns, value)) if isinstance(value, list) else set()


def test_every_pattern_has_words() -> None:
    """A regular expression is no answer to somebody who made a mistake."""
    found = patterns(BatchedAPI.model_json_schema())

    assert found == WORDS.keys() | OWN_WORDS
    assert all(words.startswith("expected ") for words in WORDS.values())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"predictor": {"path": "model"}}, "path: expected module:Class or file.py:Class"),
        ({"networking": {"endpoint": "x"}}, "endpoint: expected a path such as /iris"),
        ({"pod": {"nodeSelector": {"a": "!"}}}, "expected letters, digits and '-_.'"),
        ({"pod": {"runAsUser": "x"}}, "expected 1 to 2147483647 or Platform"),
        ({"autoscaling": {"window": "5"}}, "expected a duration such as 5ms"),
        ({"updateStrategy": {"maxSurge": "x"}}, "a whole number or a percentage such as 25%"),
    ],
)
def test_no_message_has_a_regular_expression(spec: dict[str, Any], message: str) -> None:
    """The cases are the fields with a pattern that are most often wrong."""
    (line,) = problems(document(spec))

    assert message in line
    assert not {"^", "$", "[", "\\"} & set(line.partition(": ")[2])
