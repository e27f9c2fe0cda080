"""What is said of batches that failed."""

from typing import Final

import orjson

from batchedapi_core.batching import Batch
from batchedapi_serving.codecs.results import Item, ItemResults, error_object
from batchedapi_serving.ipc.frames import Meta

OUT_OF_MEMORY: Final = (
    "ran out of memory on this input alone (RAM or the GPU's); send a smaller one, or give the"
    " replica more memory"
)
DIED: Final = "died on this input"


def raised_for_all(batch: Batch, meta: Meta) -> ItemResults:
    """Every row's answer where an ItemError was raised for them together, as `meta` says."""
    first = batch.requests[0].first
    together = f"raised for rows {first} to {first + batch.rows - 1}, which were not run one by one"
    text = orjson.dumps(error_object("item_failed", f"{meta['message']} ({together})"))
    return ItemResults([Item(meta["status"], "json", text)] * batch.rows)
