"""Where the queue of all replicas is, and what turns it on."""

from typing import Any

import pytest

from batchedapi_core.manifest import BatchedAPI, ManifestError, ServerSideBatching, parse_api
from batchedapi_serving.cli.roles import queue_settings
from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import QueueSettings, Role

ENVIRONMENT = {
    "REDIS__HOST": "there",
    "REDIS__PORT": "6380",
    "REDIS__DB": "2",
    "REDIS__USERNAME": "us",
    "REDIS__PASSWORD": "secret",
}


def batching(**queue: Any) -> ServerSideBatching:
    """Batching of a manifest with that `queue.redis`, or without a queue."""
    api: BatchedAPI = parse_api(
        {
            "apiVersion": "batchedapi.dev/v1alpha1",
            "kind": "BatchedAPI",
            "metadata": {"name": "api"},
            "spec": {
                "predictor": {"path": "model:Model"},
                "serverSideBatching": {"queue": queue} if queue else {},
            },
        }
    )
    return api.spec.server_side_batching


def test_the_environment_alone_turns_no_queue_on() -> None:
    """A cluster may have REDIS__HOST for something else."""
    assert queue_settings(batching(), Role.REPLICA, ENVIRONMENT) is None


@pytest.mark.parametrize("role", [Role.WEB, Role.WORKER])
def test_a_role_of_its_own_turns_it_on(role: Role) -> None:
    """There is nothing else that it could be for."""
    assert QueueSettings() == queue_settings(batching(), role, {})


def test_the_environment_fills_what_the_manifest_does_not_say() -> None:
    """D04: the names that dynamic_batcher knows."""
    filled = queue_settings(batching(redis={"host": "here"}), Role.REPLICA, ENVIRONMENT)

    assert QueueSettings("here", 6380, 2, username="us", password="secret") == filled  # noqa: S106 - of a test


def test_the_manifest_beats_the_environment() -> None:
    """A value written in the manifest is deliberate."""
    written = {"port": 1, "db": 0, "tls": True, "prefix": "ours:", "maxLength": 5}

    found = queue_settings(batching(redis=written), Role.WORKER, ENVIRONMENT)

    assert found is not None
    assert ("there", 1, 0, True) == (found.host, found.port, found.db, found.tls)
    assert ("ours:", 5) == (found.prefix, found.max_length)


@pytest.mark.parametrize(
    ("name", "text"), [("REDIS__PORT", "x"), ("REDIS__PORT", "0"), ("REDIS__DB", "-1")]
)
def test_a_variable_that_is_no_number_is_named(name: str, text: str) -> None:
    """Whoever set it finds it."""
    with pytest.raises(ManifestError, match=name):
        queue_settings(batching(redis={}), Role.REPLICA, {name: text})


def test_a_secret_that_only_a_cluster_has_is_asked_for() -> None:
    """Without it the first connection would be refused, and nobody knew why."""
    with pytest.raises(LoadError, match=r"REDIS__PASSWORD=\.\.\. before the command"):
        queue_settings(
            batching(redis={"passwordSecret": {"name": "redis", "key": "password"}}),
            Role.REPLICA,
            {},
        )
