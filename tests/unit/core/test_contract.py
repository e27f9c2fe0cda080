"""The published names do not contradict each other."""

import re

import pytest

from batchedapi_core import contract
from batchedapi_core.contract import ms, per_second, percent, rate, size

METRICS = {name: value for name, value in vars(contract).items() if name.startswith("METRIC_")}
OPERATOR = {
    name: value
    for name, value in vars(contract).items()
    if name.startswith("OPERATOR_") and isinstance(value, str)
}


@pytest.mark.parametrize(
    ("maximum", "edges"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
        (100, (1, 2, 4, 8, 16, 32, 64, 100)),
    ],
)
def test_batch_size_edges_double_and_end_with_the_maximum(
    maximum: int, edges: tuple[int, ...]
) -> None:
    """B19, B20: a full batch has a bucket of its own, whatever the maximum is."""
    assert edges == contract.batch_size_buckets(maximum)


@pytest.mark.parametrize("maximum", [1, 2, 31, 32, 33, contract.MAX_BATCH_SIZE_LIMIT])
def test_edges_are_strictly_ascending(maximum: int) -> None:
    """Prometheus refuses a page where they are not."""
    edges = contract.batch_size_buckets(maximum)

    assert sorted(set(edges)) == list(edges)
    assert list(contract.LATENCY_BUCKETS) == sorted(set(contract.LATENCY_BUCKETS))


def test_every_metric_name_is_used_once_and_valid() -> None:
    """Two families of one name make a page unreadable."""
    names = [*METRICS.values(), *OPERATOR.values()]

    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)


def test_metric_names_carry_our_prefix_and_base_units() -> None:
    """Only start and CPU time of the process have the names that every Prometheus client gives."""
    others = set(METRICS.values()) - {
        contract.METRIC_PROCESS_START_TIME,
        contract.METRIC_PROCESS_CPU_SECONDS,
    }

    assert all(name.startswith("batchedapi_") for name in others)
    assert all(name.startswith("batchedapi_operator_") for name in OPERATOR.values())
    assert not [name for name in others if re.search(r"_(ms|millis|minutes|kb)(_|$)", name)]


def test_labels_of_metrics_have_no_duplicates() -> None:
    """Each member is one series."""
    for members in (contract.RELEASE_REASONS, contract.REJECTION_REASONS, contract.STATUS_CODES):
        assert len(members) == len(set(members))


def test_names_of_the_resource_belong_together() -> None:
    """The API group is part of all of them."""
    assert f"{contract.GROUP}/{contract.VERSION}" == contract.API_VERSION
    assert contract.KIND.lower() == contract.SINGULAR
    assert contract.LABEL_API.startswith(f"{contract.GROUP}/")
    assert contract.LABEL_REVISION.startswith(f"{contract.GROUP}/")
    assert len({contract.HTTP_PORT, contract.ADMIN_PORT, contract.SERVICE_PORT}) == 3


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("0.25 ms", ms(0.00025)),
        ("20 ms", ms(0.02)),
        ("1280 ms", ms(1.28)),
        ("93 %", percent(0.93)),
        ("0.0", per_second(0.0)),
        ("9.9", per_second(9.94)),
        ("10", per_second(10.0)),
        ("3.6 rows/s", rate(3.6)),
        ("1333 rows/s", rate(1333.3)),
        ("21.4", size(21.43)),
    ],
)
def test_a_figure_has_as_many_digits_as_are_read(expected: str, said: str) -> None:
    """Little is not shown as nothing, and much not to the thousandth."""
    assert expected == said


def test_no_source_of_variables_begins_as_another() -> None:
    """Keys of the eleventh would be taken for keys of the second."""
    heads = [contract.source_prefix(index) for index in range(33)]

    assert 33 == len(
        {one for one in heads if not any(one.startswith(h) for h in heads if h != one)}
    )
