"""Metrics pages as replicas write them."""


def page(
    *,
    received: float = 100,
    batches: float = 10,
    rows: float = 100,
    full: float = 2,
    seconds: float = 1.0,
    start: float = 1000.0,
    requests: float | None = None,
    size: float | None = None,
    max_batch_size: int = 16,
    lanes: int = 2,
    in_flight: int = 5,
    squares: float | None = None,
    extra: str = "",
) -> str:
    """One method's page; a request has one row unless `requests` says otherwise.

    `size` is the counter of batch sizes, which an older replica does not export, and `squares` the
    sum of squared rows of the requests received.
    """
    sizes = "" if size is None else f'batchedapi_batch_size_total{{method="predict"}} {size}\n'
    squared = received if squares is None else squares
    return f"""# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {start}
# TYPE batchedapi_rows_received_total counter
batchedapi_rows_received_total{{method="predict"}} {received}
batchedapi_request_rows_squared_total{{method="predict"}} {squared}
batchedapi_rows_rejected_total{{method="predict",reason="latency"}} 1
batchedapi_rows_rejected_total{{method="predict",reason="queue_full"}} 2
# TYPE batchedapi_batch_rows histogram
batchedapi_batch_rows_bucket{{method="predict",le="8"}} {batches / 2}
batchedapi_batch_rows_bucket{{method="predict",le="16"}} {batches}
batchedapi_batch_rows_bucket{{method="predict",le="+Inf"}} {batches}
batchedapi_batch_rows_sum{{method="predict"}} {rows}
batchedapi_batch_rows_count{{method="predict"}} {batches}
batchedapi_batch_requests_sum{{method="predict"}} {rows if requests is None else requests}
batchedapi_batch_requests_count{{method="predict"}} {batches}
batchedapi_batch_seconds_sum{{method="predict"}} {seconds}
batchedapi_batch_seconds_count{{method="predict"}} {batches}
batchedapi_batches_total{{method="predict",reason="full"}} {full}
batchedapi_batches_total{{method="predict",reason="interval"}} {batches - full}
batchedapi_queue_rows{{method="predict"}} 3
batchedapi_in_flight_requests{{method="predict"}} {in_flight}
batchedapi_lanes{{method="predict"}} {lanes}
batchedapi_max_batch_size{{method="predict"}} {max_batch_size}
batchedapi_batch_interval_seconds{{method="predict"}} 0.005
{sizes}{extra}"""


CALLS: str = """batchedapi_rows_received_total{method="ask"} 70
batchedapi_rows_rejected_total{method="ask",reason="queue_full"} 3
batchedapi_batch_rows_bucket{method="ask",le="1"} 60
batchedapi_batch_rows_bucket{method="ask",le="+Inf"} 60
batchedapi_batch_rows_sum{method="ask"} 60
batchedapi_batch_rows_count{method="ask"} 60
batchedapi_batch_requests_sum{method="ask"} 60
batchedapi_batch_requests_count{method="ask"} 60
batchedapi_batch_seconds_sum{method="ask"} 600
batchedapi_batch_seconds_count{method="ask"} 60
batchedapi_batches_total{method="ask",reason="full"} 60
batchedapi_queue_rows{method="ask"} 7
batchedapi_in_flight_requests{method="ask"} 900
batchedapi_lanes{method="ask"} 1024
batchedapi_max_batch_size{method="ask"} 1
batchedapi_batch_interval_seconds{method="ask"} 1
batchedapi_batch_size_total{method="ask"} 60
"""
"""Beside `page`: an async method without batching, whose calls last ten seconds each."""
