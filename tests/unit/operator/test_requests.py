"""What is sent to the apiserver: paths and bodies, whatever users have written."""

import json

import pytest
import yaml

from batchedapi_operator.cluster import CONFIG_MAPS
from batchedapi_operator.kube import as_yaml


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
