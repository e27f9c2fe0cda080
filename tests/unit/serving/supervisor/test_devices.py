"""Which GPUs are seen, and what each model process is told of them."""

import pytest

from batchedapi_core.placement import GpuAssignment
from batchedapi_serving.errors import LoadError
from batchedapi_serving.supervisor.devices import cuda_visible_devices, visible_gpus


@pytest.mark.parametrize(
    ("environment", "nodes", "gpus"),
    [
        ({}, ["null", "nvidiactl", "nvidia-uvm"], ()),
        ({}, ["nvidia3", "nvidia7", "nvidiactl"], ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "2,GPU-ab"}, [], ("2", "GPU-ab")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["nvidia0"], ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["nvidia0"], ("1",)),
    ],
    ids=["none", "numbered anew", "named", "hidden", "cut off"],
)
def test_gpus_are_seen_as_cuda_sees_them(
    environment: dict[str, str], nodes: list[str], gpus: tuple[str, ...]
) -> None:
    """W11: a device file's number is the machine's, CUDA's begin at 0 in every container."""
    assert gpus == visible_gpus(environment, nodes)


def test_a_machine_without_gpus_has_none() -> None:
    """The real /dev is read; here, whatever it says, it says it without failing."""
    assert isinstance(visible_gpus({}), tuple)


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
