"""Headers that tell a client about the batch of its request."""

from batchedapi_serving.codecs import Receipt
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, receipt_headers, receipt_values
from protocols import items

RECEIPT = Receipt("b-7", 12, 3, 2, 0.0015, 0.0042, "full", "iris-0", 1)


def test_a_receipt_says_batch_rows_times_and_place() -> None:
    """F8, D11: elapsed is what the client waited for, queue and execution."""
    assert {
        "batch_id": "b-7", "batch_rows": 12, "batch_requests": 3, "my_rows": 2, "queue_ms": 1.5,
        "exec_ms": 4.2, "elapsed_ms": 5.7, "reason": "full", "replica": "iris-0", "process": 1,
    } == receipt_values(RECEIPT)  # fmt: skip


def test_headers_are_the_same_values_under_one_prefix() -> None:
    """Names in lower case, as HTTP/2 wants them."""
    headers = dict(receipt_headers(RECEIPT))

    assert b"b-7" == headers[b"x-batchedapi-batch-id"]
    assert b"1.5" == headers[b"x-batchedapi-queue-ms"]
    assert 10 == len(headers)
    assert () == receipt_headers(None)


def test_an_answer_carries_its_receipt_and_none_unless_given() -> None:
    """F8: off by default."""
    results = items(1, 2)

    assert receipt_headers(RECEIPT) == ITEM.answer(results, 0, 1, RECEIPT).headers
    assert receipt_headers(RECEIPT) == INSTANCES.answer(results, 0, 2, RECEIPT).headers
    assert () == INSTANCES.answer(results, 0, 2, None).headers
