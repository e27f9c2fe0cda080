"""What a predictor imports."""

from batchedapi_serving.predictor import (
    Context,
    ItemError,
    SizeOf,
    SubmitError,
    Tensor,
    batched,
    endpoint,
)

__all__ = ["Context", "ItemError", "SizeOf", "SubmitError", "Tensor", "batched", "endpoint"]
