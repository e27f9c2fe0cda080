"""The GPUs that each model process sees."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.placement import (
    GpuAssignment,
    PlacementError,
    assign_devices,
    visible_devices,
)

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)
DEVICES = st.lists(st.integers(0, 99).map(str), max_size=16, unique=True)


@pytest.mark.parametrize(
    ("assignment", "gpus", "processes", "expected"),
    [
        pytest.param("Auto", "01", 2, ("0", "1"), id="W12: one each"),
        pytest.param("Auto", "0123", 1, ("0123",), id="W14: several for one"),
        pytest.param("Auto", "0", 4, ("0", "0", "0", "0"), id="four processes on one GPU"),
        pytest.param("Auto", "012", 2, ("0", "1"), id="no multiple: in turn"),
        pytest.param("Auto", "", 2, ("", ""), id="no GPU"),
        pytest.param("Exclusive", "0123", 2, ("01", "23"), id="blocks"),
        pytest.param("Exclusive", "", 2, ("", ""), id="nothing to share out"),
        pytest.param("RoundRobin", "01", 3, ("0", "1", "0"), id="in turn"),
        pytest.param("RoundRobin", "", 2, ("", ""), id="none in turn"),
        pytest.param("All", "01", 2, ("01", "01"), id="all"),
        pytest.param("None", "01", 2, ("", ""), id="none"),
    ],
)
def test_devices_are_shared_out_as_asked(
    assignment: str, gpus: str, processes: int, expected: tuple[str, ...]
) -> None:
    """W11: a process sees its own devices alone, so `cuda:0` is right in every one of them."""
    found = assign_devices(GpuAssignment(assignment), gpus, processes)

    assert expected == tuple("".join(share) for share in found)


@pytest.mark.parametrize(("gpus", "processes"), [("012", 2), ("0", 2)])
def test_exclusive_devices_that_cannot_be_shared_out_are_refused(gpus: str, processes: int) -> None:
    """R6 again, at start: `cpu_count` is not known before."""
    with pytest.raises(PlacementError, match=f"a multiple of 2 GPUs .* got {len(gpus)}"):
        assign_devices(GpuAssignment.EXCLUSIVE, gpus, processes)


@SETTINGS
@given(devices=DEVICES, processes=st.integers(1, 16), choice=st.sampled_from(GpuAssignment))
def test_every_process_gets_a_share_of_what_there_is(
    devices: list[str], processes: int, choice: GpuAssignment
) -> None:
    """And under Auto no device lies idle while processes are a divisor of them."""
    try:
        shares = assign_devices(choice, devices, processes)
    except PlacementError:
        assert choice is GpuAssignment.EXCLUSIVE
        return

    assert len(shares) == processes
    assert {one for share in shares for one in share} <= set(devices)
    if choice is GpuAssignment.AUTO and len(devices) % processes == 0:
        assert devices == [one for share in shares for one in share]


@pytest.mark.parametrize(
    ("cuda", "nvidia", "files", "expected"),
    [
        pytest.param(None, None, 2, ("0", "1"), id="device files"),
        pytest.param(None, None, 0, (), id="none"),
        pytest.param("1,3", None, 4, ("1", "3"), id="CUDA_VISIBLE_DEVICES"),
        pytest.param("", None, 4, (), id="hidden"),
        pytest.param("0,-1,2", None, 4, ("0",), id="CUDA stops at -1"),
        pytest.param(None, "all", 2, ("0", "1"), id="the runtime's all"),
        pytest.param(None, "void", 2, ("0", "1"), id="what drivers of claims set"),
        pytest.param(None, "5", 1, ("0",), id="the runtime's number is not CUDA's"),
        pytest.param(None, "MIG-a, MIG-b", 1, ("MIG-a", "MIG-b"), id="slices"),
    ],
)
def test_devices_are_named_as_cuda_names_them(
    cuda: str | None, nvidia: str | None, files: int, expected: tuple[str, ...]
) -> None:
    """A container with GPU 5 of the node has /dev/nvidia5, and CUDA calls it 0."""
    assert expected == visible_devices(cuda, nvidia, files)
