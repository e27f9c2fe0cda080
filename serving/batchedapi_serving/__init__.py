"""What a predictor imports: `from batchedapi_serving import Context, ItemError, Tensor, batched`."""

from batchedapi_serving.predictor.api import Context, ItemError, Tensor, batched

__all__ = ["Context", "ItemError", "Tensor", "batched"]
