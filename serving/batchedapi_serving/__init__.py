"""What a predictor imports."""

from batchedapi_serving.predictor import (
    Context,
    ItemError,
    Response,
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
    "Response",
    "SizeOf",
    "SubmitError",
    "Tensor",
    "Upload",
    "batched",
    "endpoint",
]
