"""The environment of a model process: its devices, its threads, the user's variables."""

from typing import Any

import pytest

from batchedapi_core.placement import THREAD_VARIABLES, GpuAssignment
from batchedapi_serving.errors import LoadError
from batchedapi_serving.supervisor.model_processes import cuda_visible_devices, model_environments
from dispatching import replica_settings


def environment_of(
    index: int = 0,
    *,
    inherited: dict[str, str] | None = None,
    user: dict[str, str] | None = None,
    cpu_threads: int | None = None,
    **gpus: Any,
) -> dict[str, str]:
    """With four threads, whether the manifest says so or not."""
    count = index + 1
    settings = replica_settings(processes=count, cpu_threads=cpu_threads, **gpus)
    return model_environments(settings, inherited or {}, user or {}, 4.0 * count)[index]


def test_every_library_gets_its_share_of_threads() -> None:
    """Each would start one per core of the node: processes x cores threads for a few CPUs."""
    environment = environment_of()

    assert dict.fromkeys(THREAD_VARIABLES, "4") == {
        name: environment[name] for name in THREAD_VARIABLES
    }


def test_the_index_counts_from_zero() -> None:
    """W09/W10: the same number as context.worker_index."""
    assert environment_of(2)["BATCHEDAPI_WORKER_INDEX"] == "2"


def test_threads_that_the_image_chose_stay() -> None:
    """The container's ENV is the user's word too..."""
    inherited = {"OMP_NUM_THREADS": "1"}

    environment = environment_of(inherited=inherited)

    assert "OMP_NUM_THREADS" not in environment
    assert environment["MKL_NUM_THREADS"] == "4"


def test_the_manifest_beats_the_image_and_its_env_beats_its_cpu_threads() -> None:
    """...but the manifest is the later word, and the most particular word of it counts."""
    environment = environment_of(
        inherited={"OMP_NUM_THREADS": "1"},
        user={"MKL_NUM_THREADS": "3"},
        cpu_threads=4,
    )

    assert ("4", "3") == (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"])


def test_devices_are_set_only_if_there_is_something_to_say() -> None:
    """An empty value hides every GPU, none leaves what is there; the runtime's is its own."""
    assert "CUDA_VISIBLE_DEVICES" not in environment_of()
    assert environment_of(gpu_assignment="None")["CUDA_VISIBLE_DEVICES"] == ""
    assert environment_of(gpus=("1",))["CUDA_VISIBLE_DEVICES"] == "1"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment_of(gpus=("1",))


def test_the_users_own_devices_count() -> None:
    """A CUDA_VISIBLE_DEVICES in the manifest is deliberate."""
    user = {"CUDA_VISIBLE_DEVICES": "7"}

    assert environment_of(gpus=("1",), user=user)["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize(
    ("gpus", "processes", "assignment", "seen"),
    [
        (("0", "1"), 2, GpuAssignment.AUTO, ("0", "1")),
        (("0", "1", "2", "3"), 1, GpuAssignment.AUTO, ("0,1,2,3",)),
        (("0", "1", "2", "3"), 2, GpuAssignment.AUTO, ("0,1", "2,3")),
        (("0", "1"), 3, GpuAssignment.AUTO, ("0", "1", "0")),
        (("0", "1"), 2, GpuAssignment.ALL, ("0,1", "0,1")),
        (("0",), 2, GpuAssignment.NONE, ("", "")),
        ((), 2, GpuAssignment.NONE, ("", "")),
        ((), 2, GpuAssignment.AUTO, (None, None)),
        ((), 2, GpuAssignment.ALL, (None, None)),
    ],
)
def test_every_process_is_told_its_devices(
    gpus: tuple[str, ...], processes: int, assignment: GpuAssignment, seen: tuple[str | None, ...]
) -> None:
    """W09-W14: unset only where there is nothing to give and nothing to hide."""
    assert seen == cuda_visible_devices(gpus, processes, assignment)


@pytest.mark.parametrize(
    ("gpus", "assignment", "remedy"),
    [
        (("0", "1", "2"), GpuAssignment.EXCLUSIVE, "RoundRobin shares them"),
        ((), GpuAssignment.EXCLUSIVE, "set spec.compute.gpu"),
        ((), GpuAssignment.ROUND_ROBIN, "set spec.compute.gpu"),
    ],
)
def test_gpus_that_cannot_be_shared_out_fail_the_start(
    gpus: tuple[str, ...], assignment: GpuAssignment, remedy: str
) -> None:
    """Rather than a replica that computes on the CPU, a hundred times slower, without a word."""
    with pytest.raises(LoadError, match=remedy) as raised:
        cuda_visible_devices(gpus, 2, assignment)

    assert raised.value.reason == "InitFailed"
