"""The decisions of the cluster commands before they act; no cluster needed."""

import socket
from pathlib import Path

import pytest
from tests.cluster.devcluster import local, network, node
from tests.cluster.devcluster.choice import Flavour, choose
from tests.cluster.devcluster.inputs import pip_settings
from tests.cluster.devcluster.steps import ClusterError


@pytest.mark.parametrize(
    ("requested", "recorded", "docker_answers", "root_on_linux", "expected"),
    [
        pytest.param("", "", False, True, Flavour.LOCAL, id="root on Linux without Docker"),
        pytest.param("", "", True, True, Flavour.KIND, id="Docker answers"),
        pytest.param("", "", False, False, Flavour.KIND, id="no root: kind will say what it lacks"),
        pytest.param("", "local", True, True, Flavour.LOCAL, id="what is up is meant"),
        pytest.param("current", "local", True, True, Flavour.CURRENT, id="the wish goes first"),
    ],
)
def test_the_cluster_is_the_wish_then_the_one_that_is_up_then_what_the_machine_can_run(
    *,
    requested: str,
    recorded: str,
    docker_answers: bool,
    root_on_linux: bool,
    expected: Flavour,
) -> None:
    """`down` without CLUSTER must not look for another cluster than `up` started."""
    chosen = choose(requested, recorded, docker_answers=docker_answers, root_on_linux=root_on_linux)

    assert expected is chosen


def test_an_unknown_cluster_is_refused_with_the_known_ones() -> None:
    """A typing mistake must not silently start something else."""
    with pytest.raises(ClusterError, match="kind, local, current, got 'minikube'"):
        choose("minikube", "", docker_answers=True, root_on_linux=True)


def test_another_cluster_than_the_one_that_is_up_is_refused() -> None:
    """Both keep their state in one place: the first would run on with nothing to stop it by."""
    with pytest.raises(ClusterError, match="CLUSTER=kind: a local cluster is up"):
        choose("kind", "local", docker_answers=True, root_on_linux=True)


def test_certificates_reach_the_build_as_a_secret() -> None:
    """The path on this machine means nothing inside the build, and must not end up in an image."""
    settings = pip_settings({"PIP_CERT": "/somewhere/ca.crt", "PIP_RETRIES": "2"})

    assert settings.config == "[global]\ncert = /run/secrets/pip-cert\nretries = 2\n"
    assert settings.certificates == "/somewhere/ca.crt"


def test_a_folder_of_wheels_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    """Pip would look for it in vain on every package; one that exists is mounted."""
    missing = pip_settings({"PIP_FIND_LINKS": str(tmp_path / "none")})
    present = pip_settings({"PIP_FIND_LINKS": str(tmp_path)})

    assert (missing.config, missing.folder) == ("", "")
    assert str(tmp_path) == present.folder
    assert present.config == f"[global]\nfind-links = {tmp_path}\n"


def test_no_settings_make_no_configuration() -> None:
    """Pip's defaults hold where the environment says nothing."""
    assert pip_settings({}).config == ""


@pytest.mark.parametrize("runs", [True, False])
def test_the_network_of_another_checkouts_cluster_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    """Both use one name for it; what is left of a dead one is removed."""
    torn: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if runs:
            other.listen()
        port = other.getsockname()[1]
        if not runs:
            other.close()
        monkeypatch.setattr(node, "PORTS", (port,))
        monkeypatch.setattr(local, "succeeds", lambda *_: True)
        monkeypatch.setattr(network, "tear_down", lambda: torn.append("torn"))

        local.remove_network()

    assert torn == ([] if runs else ["torn"])
