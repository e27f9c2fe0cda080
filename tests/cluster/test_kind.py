"""`CLUSTER=kind` without Docker: kind itself reads its configuration, and stand-ins fail."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cluster import standins
from tests.cluster.devcluster import inputs, kind, kindnode, network, paths, tools

REAL_DOCKER_STAND_IN: Final = """\
#!/bin/sh
case "$1" in
  -v) echo "Docker version 27.0.3, build 7d4bcd8" ;;
  {answers}
  *) echo "{failure}" >&2; exit 1 ;;
esac
"""


def executable(path: Path, text: str) -> None:
    """A program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@dataclass(frozen=True)
class Machine:
    """A copy of the commands, and the stand-ins' folder."""

    root: Path
    folder: Path

    def run(self, command: str, *faults: str) -> "subprocess.CompletedProcess[str]":
        """`tests/cluster/COMMAND` with CLUSTER=kind."""
        (self.folder / "faults").write_text("\n".join(faults))
        program, *arguments = command.split()
        return subprocess.run(
            [self.root / "tests/cluster" / program, *arguments],
            env={**os.environ, "CLUSTER": "kind", "PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def brought_up(self) -> None:
        """As `up` leaves it."""
        (self.root / ".run/cluster").mkdir(parents=True)
        (self.root / ".run/cluster/flavour").write_text("kind")
        (self.root / ".run/cluster/kubeconfig").touch()
        (self.folder / "cluster").write_text("ready")

    def calls(self, of: str) -> list[str]:
        """The calls of a program so far."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.removeprefix(f"{of} ") for line in lines if line.startswith(f"{of} ")]

    def left(self) -> set[str]:
        """The remains of a cluster: state on this machine, and the node."""
        run = self.root / ".run/cluster"
        state = {path.name for path in run.glob("*") if path.name != "log"}
        return state | {path.name for path in self.folder.glob("cluster")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Without Docker, kind and kubectl; nothing of this checkout's own state is touched."""
    root, folder = tmp_path / "repository", tmp_path / "programs"
    (root / "tests").mkdir(parents=True)
    left_out = shutil.ignore_patterns("__pycache__", "kube")
    shutil.copytree(paths.SOURCES, root / "tests/cluster", ignore=left_out)
    (root / "tests/cluster/kube").mkdir()
    for source in {name for image in inputs.IMAGES.values() for name in image.sources}:
        (root / source).parent.mkdir(exist_ok=True)
        (root / source).symlink_to(paths.ROOT / source)
    version = tools.GO_PROGRAMS["kind"].rpartition("@")[2]
    for program in ("docker", "kubectl", "go", "kind"):
        where = root / f".cache/cluster/go/kind-{version}" if program == "kind" else folder
        words = f'exec {sys.executable} -IS {standins.__file__} {folder} {program} "$@"'
        executable(where / program, f"#!/bin/sh\n{words}\n")
    (folder / "calls").touch()
    return Machine(root, folder)


def test_up_images_and_down_run_through(machine: Machine) -> None:
    """As on a machine with Docker; a second call of each has nothing to do."""
    up, again = machine.run("up"), machine.run("up")
    images, nothing = machine.run("images"), machine.run("images")
    down, none = machine.run("down"), machine.run("down")

    for done in (up, again, images, nothing, down, none):
        assert 0 == done.returncode, done.stdout + done.stderr
    assert f"export KUBECONFIG={machine.root}/.run/cluster/kubeconfig" in up.stdout
    assert "kind cluster is up" in again.stdout
    assert kind.configuration() == json.loads((machine.folder / "configuration").read_text())
    for image in inputs.IMAGES.values():
        build = f"build -t {image.tag} --build-arg=PART={image.part} "
        assert 1 == sum(call.startswith(build) for call in machine.calls("docker"))
    assert 2 == sum(call.startswith("load docker-image") for call in machine.calls("kind"))
    assert 2 == nothing.stdout.count("is up to date")
    assert set() == machine.left()


def test_the_node_image_may_be_another(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a way to docker.io there is a mirror, or an image of one's own."""
    monkeypatch.setenv(kind.NODE_IMAGE, "mirror/node:v1")

    assert 0 == machine.run("up").returncode

    (create,) = [call for call in machine.calls("kind") if call.startswith("create")]
    assert " --image mirror/node:v1 " in create


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no daemon", "start Docker, or use CLUSTER=local as root"),
        ("docker is too old", "Docker with BuildKit is needed"),
        ("docker tells of no secrets", "Docker with BuildKit is needed"),
        ("no node image", "let this machine reach docker.io"),
        ("port taken", "(node ports are 30000-30031), or call again"),
        ("no room for a node", "docker system prune"),
        ("kubeconfig locked", "remove the file .lock beside it"),
        ("never ready", "kind cluster: not ready within 180s; its logs are in"),
    ],
)
def test_a_start_that_fails_says_what_to_do_and_leaves_nothing(
    machine: Machine, fault: str, words: str
) -> None:
    """The next call starts from scratch, and nothing has to be cleaned up by hand."""
    failed = machine.run("up", fault)

    assert 1 == failed.returncode, failed.stdout
    assert failed.stderr.startswith("error: ")
    assert "Traceback" not in failed.stderr
    assert words in failed.stderr
    assert set() == machine.left()


def test_what_cannot_be_removed_is_said_too(machine: Machine) -> None:
    """Else the next call finds a cluster that nobody knows of."""
    failed = machine.run("up", "never ready", "not to be deleted")

    assert "kind cluster: not ready within 180s" in failed.stderr
    assert "what was begun could not be removed" in failed.stderr
    assert 0 == machine.run("down").returncode
    assert set() == machine.left()


def test_a_cluster_whose_container_was_stopped_is_made_anew(machine: Machine) -> None:
    """As after a restart of the machine: the images are loaded again with it."""
    machine.brought_up()
    assert 0 == machine.run("images serving").returncode
    (machine.folder / "stopped").touch()

    images = machine.run("images serving")
    assert (1, True) == (images.returncode, "run tests/cluster/up first" in images.stderr)

    (machine.folder / "stopped").unlink()
    (machine.folder / "cluster").write_text("")  # runs, but is not ready
    assert 0 == machine.run("up").returncode
    assert 1 == sum(call.startswith("delete cluster") for call in machine.calls("kind"))
    assert "is up to date" not in machine.run("images serving").stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("docker is too old", "Docker with BuildKit is needed"),
        ("docker has no secrets", "Docker with BuildKit is needed"),
        ("no room to build", "docker system prune"),
        ("no base image", "let this machine reach docker.io for the base image"),
        ("image lost", "tests/cluster/images --force"),
        ("node stopped", "tests/cluster/up makes it anew"),
    ],
)
def test_images_that_fail_say_what_to_do_and_are_tried_again(
    machine: Machine, fault: str, words: str
) -> None:
    """An image whose loading failed is not taken for loaded."""
    machine.brought_up()

    failed = machine.run("images serving", fault)

    assert 1 == failed.returncode
    assert standins.FAULTS[fault][2].splitlines()[-1].strip() in failed.stderr
    assert words in failed.stderr
    again = machine.run("images serving")
    assert 0 == again.returncode, again.stderr
    assert "kind load" in again.stdout


def test_a_cluster_that_cannot_be_deleted_is_remembered(machine: Machine) -> None:
    """`down` without CLUSTER finds it the next time."""
    machine.brought_up()

    failed = machine.run("down", "not to be deleted")

    assert 1 == failed.returncode
    assert "error deleting nodes" in failed.stderr
    assert {"flavour", "kubeconfig", "cluster"} == machine.left()


@dataclass(frozen=True)
class RealKind:
    """The real kind beside a docker that answers some commands alone."""

    program: Path
    folder: Path

    def run(self, *words: str, stdin: Any = None, **answers: str) -> str:
        """Kind's output; `answers` are by the first word of docker's arguments."""
        known = "\n  ".join(f"{name}) printf '{text}' ;;" for name, text in answers.items())
        text = REAL_DOCKER_STAND_IN.format(answers=known, failure=standins.NO_DAEMON)
        executable(self.folder / "docker", text)
        own = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            # A cluster that fails to start is taken out of the file that this names.
            "KUBECONFIG": str(self.folder / "kubeconfig"),
        }
        done = subprocess.run(
            [self.program, *words],
            env={**os.environ, **own},
            input="" if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert 1 == done.returncode, done.stdout
        return done.stderr


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RealKind:
    """Built from its Go module at the version that `up` uses."""
    if shutil.which("go") is None:
        pytest.skip("kind is built with Go")
    return RealKind(tools.go_program("kind"), tmp_path_factory.mktemp("docker"))


CREATE: Final = ("create", "cluster", "--config", "-")


def test_kind_s_own_package_takes_our_configuration(real: RealKind) -> None:
    """Read, converted and checked: what comes next is Docker's part."""
    told = real.run(*CREATE, stdin=kind.configuration(), info="{}", ps="", inspect="sha256:1")

    assert f'Creating cluster "{kind.NAME}"' in told
    assert "failed to ensure docker network" in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodez": []}, "field nodez not found in type v1alpha4.Cluster"),
        ({"nodes": [{"role": "worker"}]}, "must have at least one control-plane node"),
        ({"networking": {"podSubnet": "10.244.0.0"}}, "invalid pod subnet"),
    ],
    ids=["a field", "a role", "an address"],
)
def test_kind_s_own_package_refuses_what_is_wrong(
    real: RealKind, change: dict[str, object], words: str
) -> None:
    """The test above would otherwise show nothing."""
    assert words in real.run(*CREATE, stdin={**kind.configuration(), **change}, info="{}", ps="")


def test_a_cluster_of_that_name_that_kind_alone_knows_is_told(real: RealKind) -> None:
    """Somebody made it meanwhile."""
    told = real.run(*CREATE, stdin=kind.configuration(), info="{}", ps="batchedapi-control-plane")

    assert f'node(s) already exist for a cluster with the name "{kind.NAME}"' in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("get", "clusters"), standins.NO_DAEMON),
        (("load", "docker-image", "batchedapi-serving:dev"), standins.FAULTS["image lost"][2]),
    ],
    ids=["no daemon", "image lost"],
)
def test_the_stand_in_of_kind_says_what_kind_says(
    real: RealKind, words: tuple[str, ...], says: str
) -> None:
    """The stand-in is compared with the real kind as far as that runs without a daemon."""
    assert says in real.run(*words)


@pytest.mark.usefixtures("real")
def test_a_node_image_made_here_has_the_files_of_the_same_kind(tmp_path: Path) -> None:
    """Go's cache has them read-only, and none of them as a program; a node starts with one."""
    kindnode.files(tmp_path / "files")

    assert os.access(tmp_path / "files/usr/local/bin/entrypoint", os.X_OK)
    assert tools.kubernetes_version() == (tmp_path / "files/kind/version").read_text()
    configuration = json.loads((tmp_path / "files/etc/cni/net.d/10-pods.conflist").read_text())
    (given,) = configuration["plugins"][0]["ipam"]["ranges"]
    assert [{"subnet": network.POD_CIDR}] == given
