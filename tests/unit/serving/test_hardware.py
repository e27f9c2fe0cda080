"""The resources that a container may use, from files as kernels write them."""

import os
from pathlib import Path

import pytest

from batchedapi_serving.hardware import memory_limit, process_memory, usable_cpus, visible_gpus


def write(folder: Path, files: dict[str, str]) -> Path:
    """Files below `folder`, which is returned."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25),
    ],
    ids=["v2", "v1"],
)
def test_the_quota_of_the_container_counts(
    tmp_path: Path, files: dict[str, str], cpus: float
) -> None:
    """W08: the node's cores are not this container's."""
    assert cpus == usable_cpus(write(tmp_path, files))


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000"},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        {"cpu.max": "100000000 100000"},
    ],
    ids=["no cgroup", "v2 unlimited", "v1 unlimited", "above the machine"],
)
def test_without_a_quota_the_affinity_counts(tmp_path: Path, files: dict[str, str]) -> None:
    """Taskset and the kubelet's static policy both limit it."""
    assert float(len(os.sched_getaffinity(0))) == usable_cpus(write(tmp_path, files))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1048576"}, 1048576),
        ({"memory.max": "max"}, None),
        ({"memory/memory.limit_in_bytes": "4096"}, 4096),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({}, None),
    ],
    ids=["v2", "v2 unlimited", "v1", "v1 unlimited", "no cgroup"],
)
def test_the_memory_limit_is_read(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    """v1 writes a huge number where there is no limit."""
    assert limit == memory_limit(write(tmp_path, files))


def test_shared_pages_count_their_share(tmp_path: Path) -> None:
    """Forked workers and mapped weights would be counted once for each process."""
    files = {"7/smaps_rollup": "head\nRss:  900 kB\nPss:  100 kB\n", "7/statm": "1 900 0"}

    assert process_memory(7, write(tmp_path, files)) == 102400


def test_resident_pages_count_where_the_share_is_not_told(tmp_path: Path) -> None:
    """Sandboxes such as gVisor have no smaps_rollup."""
    page = os.sysconf("SC_PAGE_SIZE")

    assert 3 * page == process_memory(7, write(tmp_path, {"7/statm": "9 3 0"}))


def test_a_process_that_ended_has_none(tmp_path: Path) -> None:
    """It ends between the look at the list and the look at it."""
    assert process_memory(7, tmp_path) is None


def test_a_real_process_has_some() -> None:
    """Against this machine's kernel: Python needs megabytes, not gigabytes."""
    memory = process_memory(os.getpid())

    assert memory is not None
    assert 1 << 20 < memory < 1 << 32


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
