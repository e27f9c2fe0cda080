"""Reading what the wrk script prints."""

import pytest
from harness.wrk import parse

OUTPUT = """Running 1s test @ http://127.0.0.1:25000/predict
  1 threads and 64 connections
  2100 requests in 2.00s, 300.00KB read
BENCH {"requests":2100,"duration_us":2000000,"connect":1,"read":2,"write":3,"status":100,\
"timeout":4,"p50_us":1500,"p99_us":4000,"max_us":9000,"right":1990,"wrong":10}
"""


def test_refused_requests_do_not_count_as_throughput() -> None:
    """A server that answers 503 quickly must not look fast."""
    result = parse(OUTPUT)

    assert 1000.0 == result.rate
    assert (100, 10, 110) == (result.refused, result.broken, result.errors)


def test_latencies_are_in_seconds() -> None:
    """Wrk counts microseconds; units are converted here and nowhere else."""
    result = parse(OUTPUT)

    assert (0.0015, 0.004) == (result.p50, result.p99)
    assert (1990, 10) == (result.right, result.wrong)


def test_output_without_figures_is_an_error_that_shows_it() -> None:
    """Wrk says why it failed in words, and they must not be lost."""
    with pytest.raises(ValueError, match="unable to connect"):
        parse("unable to connect to 127.0.0.1:25000 Connection refused")
