"""Bytes of a request -> rows for the batch, and rows of the answer -> bytes of the response.

One codec a method; which one depends on what the method declares. Nothing here waits or talks to
anybody. A codec's `decode` raises ClientError before a row can reach a batch. `interface` draws how
codecs and languages go together.
"""

from batchedapi_serving.codecs.choose import codec_for
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    Collated,
    Decoded,
    Encoded,
    Head,
    Receipt,
    Reply,
    RequestHead,
    Results,
    Wire,
)
from batchedapi_serving.codecs.item_results import ItemResults
from batchedapi_serving.codecs.tensor_results import TensorResults

__all__ = [
    "Answer",
    "Codec",
    "Collated",
    "Decoded",
    "Encoded",
    "Head",
    "ItemResults",
    "Receipt",
    "Reply",
    "RequestHead",
    "Results",
    "TensorResults",
    "Wire",
    "codec_for",
]
