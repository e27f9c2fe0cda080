"""A receipt as response headers: which batch a request rode in, and what that took."""

from typing import Final

from batchedapi_serving.codecs.interface import Receipt

_PREFIX: Final = "x-batchedapi-"


def receipt_headers(receipt: Receipt | None) -> tuple[tuple[bytes, bytes], ...]:
    """Headers of an answer, names in lower case; none without a receipt.

    Milliseconds have three decimals; elapsed is queue and execution together (D11).
    """
    if receipt is None:
        return ()
    return tuple(
        ((_PREFIX + name.replace("_", "-")).encode(), str(value).encode("latin-1", "replace"))
        for name, value in receipt_values(receipt).items()
    )


def receipt_values(receipt: Receipt) -> dict[str, str | int | float]:
    """The receipt as it is shown everywhere: names and values in the units of the names."""
    elapsed = receipt.queue_seconds + receipt.exec_seconds
    return {
        "batch_id": receipt.batch,
        "batch_rows": receipt.rows,
        "batch_requests": receipt.requests,
        "my_rows": receipt.my_rows,
        "queue_ms": round(receipt.queue_seconds * 1000, 3),
        "exec_ms": round(receipt.exec_seconds * 1000, 3),
        "elapsed_ms": round(elapsed * 1000, 3),
        "reason": receipt.reason,
        "replica": receipt.replica,
        "process": receipt.worker_index,
    }
