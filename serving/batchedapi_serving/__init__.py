"""What a predictor imports: Context, ItemError, Tensor and batched."""

from batchedapi_serving.predictor.api import Context, ItemError, Tensor, batched

__all__ = ["Context", "ItemError", "Tensor", "batched"]
