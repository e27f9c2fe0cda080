"""The CPUs of this container, out of files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from batchedapi_serving.cli.serve import usable_cpu_count

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        pytest.param({"cpu.max": "100000 100000\n"}, {}, 1, id="limit"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, {}, 1, id="v1"
        ),
        pytest.param(
            {"cpu.max": "max 100000"}, {"BATCHEDAPI_CPU_REQUEST": "1500m"}, 1, id="request"
        ),
        pytest.param({"cpu.max": "max 100000"}, {}, CPUS, id="no limit"),
        pytest.param({}, {}, CPUS, id="no control groups"),
        pytest.param({}, {"BATCHEDAPI_CPU_REQUEST": "lots"}, CPUS, id="no quantity"),
    ],
)
def test_cpus_are_those_of_the_container(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: int
) -> None:
    """W08: the node's number of CPUs is nobody's."""
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    assert expected == usable_cpu_count(environment, tmp_path)
