"""What a predictor imports."""

from batchedapi_serving.predictor import (
    Context,
    ItemError,
    SizeOf,
    SubmitError,
    Tensor,
    Upload,
    batched,
    endpoint,
)

__all__ = [
    "Context",
    "ItemError",
    "SizeOf",
    "SubmitError",
    "Tensor",
    "Upload",
    "batched",
    "endpoint",
]
