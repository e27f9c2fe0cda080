"""How many CPUs a replica may use, and how many threads each of its processes gets."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.placement import cpu_count, cpu_threads, quota_cpus

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("200000 100000", 2.0),
        ("50000 100000", 0.5),
        ("max 100000", math.inf),
        ("-1 100000", math.inf),
        ("100000 0", math.inf),
        ("200000", math.inf),
        ("", math.inf),
    ],
)
def test_a_quota_is_cpus_and_what_is_no_quota_is_no_limit(text: str, cpus: float) -> None:
    """Version 2 writes `max`, version 1 writes -1, a laptop has no such file."""
    assert cpus == quota_cpus(text)


@pytest.mark.parametrize(
    ("cpu_max", "request_", "affinity", "expected"),
    [
        pytest.param(["200000 100000"], None, 64, 2, id="the container's limit"),
        pytest.param(["200000 100000"], 8.0, 64, 2, id="the limit beats the request"),
        pytest.param(["max 100000", "300000 100000"], None, 64, 3, id="the tightest cgroup"),
        pytest.param(["max 100000"], 4.0, 64, 4, id="the request where there is no limit"),
        pytest.param([], None, 16, 16, id="the machine"),
        pytest.param(["800000 100000"], None, 2, 2, id="pinned to fewer"),
        pytest.param(["250000 100000"], None, 64, 2, id="the rest is the web process's"),
        pytest.param([], 0.2, 64, 1, id="at least one"),
    ],
)
def test_cpu_count_is_the_limit_else_the_request_else_the_machine(
    cpu_max: list[str], request_: float | None, affinity: int, expected: int
) -> None:
    """W08: os.cpu_count() in a container is the node's, and starts 64 copies of a model."""
    assert expected == cpu_count(cpu_max, request_, affinity)


@SETTINGS
@given(
    quota=st.integers(1, 10**9), request_=st.none() | st.floats(0.001, 100), cpus=st.integers(1, 99)
)
def test_cpu_count_is_at_least_one_and_never_more_than_there_are(
    quota: int, request_: float | None, cpus: int
) -> None:
    """Whatever the limits say."""
    assert 1 <= cpu_count([f"{quota} 100000"], request_, cpus) <= cpus


@pytest.mark.parametrize(
    ("written", "cpus", "processes", "expected"),
    [(None, 8, 2, 4), (None, 8, 3, 2), (None, 2, 4, 1), (3, 8, 2, 3)],
)
def test_processes_share_the_cpus_unless_it_is_written_otherwise(
    written: int | None, cpus: int, processes: int, expected: int
) -> None:
    """Without a limit each process starts a thread for every CPU, and they fight."""
    assert expected == cpu_threads(written, cpus, processes)
