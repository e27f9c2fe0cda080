"""Requests to the apiserver: paths and bodies, whatever users have written."""

import json

import pytest
import yaml

from batchedapi_operator.cluster import CONFIG_MAPS
from batchedapi_operator.errors import (
    ApplyError,
    ConflictError,
    NamespaceGoingError,
    NotPermittedError,
    RefusedError,
    WebhookError,
)
from batchedapi_operator.kube import _raise_for, as_yaml


@pytest.mark.parametrize("name", ["../../other/configmaps/iris", "../secrets/iris", "a%2e", "a?b"])
def test_a_name_stays_one_part_of_the_path(name: str) -> None:
    """A manifest must not make the operator read an object of another kind or namespace."""
    head, _, last = CONFIG_MAPS.path("here", name).rpartition("/")

    assert "/api/v1/namespaces/here/configmaps" == head
    assert set("?#/").isdisjoint(last)
    assert "%" not in last.replace("%2F", "").replace("%25", "").replace("%3F", "")


@pytest.mark.parametrize(
    "text",
    [
        "ü",
        "\U0001f680",
        "\x00\x1b",
        "\x7f\x85\u2028\ufeff",
        "\\ud83d\\ude80",
        "\\\\\U0001f680",
        '"\n: -',
    ],
)
def test_an_apply_is_read_alike_as_json_and_as_yaml(text: str) -> None:
    """The apiserver reads applies as YAML, which knows no surrogates.

    An emoji in a variable, in a predictor's code or in a status made every write of it fail.
    """
    body = {"a": text, text: [text]}

    sent = as_yaml(body)

    assert body == json.loads(sent)
    assert body == yaml.safe_load(sent)


DOWN = (
    'Internal error occurred: failed calling webhook "down.example.com": failed to call webhook:'
    ' Post "https://127.0.0.1:1/validate?timeout=2s": dial tcp 127.0.0.1:1: connect: refused'
)
DENIED = 'admission webhook "deny.example.com" denied the request: '


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (500, DOWN, WebhookError),
        (500, f"{DENIED}the policy cannot be read", WebhookError),
        (503, f"{DENIED}not now", WebhookError),
        (403, f"{DENIED}no owner", RefusedError),
        (404, f"{DENIED}no such team", RefusedError),
        (409, f"{DENIED}taken", RefusedError),
        (401, f"{DENIED}who are you", RefusedError),
        (403, f"{DENIED}it is forbidden: User x cannot have this", RefusedError),
        (403, f'is forbidden: User "x" cannot patch: {DOWN}', NotPermittedError),
        (422, f"spec.x: Invalid value: {DOWN}", RefusedError),
        (403, "because it is being terminated", NamespaceGoingError),
        (409, "it has been modified", ConflictError),
        (500, "etcdserver: request timed out", ApplyError),
    ],
)
def test_whose_fault_a_failure_is_can_be_told_from_its_words(
    status: int, message: str, error: type[ApplyError]
) -> None:
    """A webhook chooses the status that it denies with: those of others mean something else."""
    with pytest.raises(ApplyError) as raised:
        _raise_for(status, json.dumps({"message": message}).encode(), "PATCH /x")

    assert error is type(raised.value)
    assert (error is ApplyError) == raised.value.unheard
    assert message in raised.value.message
