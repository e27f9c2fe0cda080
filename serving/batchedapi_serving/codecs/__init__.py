"""Bytes of a request -> rows for the batch, and rows of the answer -> bytes of the response.

One codec a method; which one depends on what the method declares. Nothing here waits or talks to
anybody. A codec's `decode` raises ClientError before a row can reach a batch. `interface` draws how
codecs and languages go together.
"""

from batchedapi_core import contract
from batchedapi_core.batching import Receipts, SizeUnit
from batchedapi_serving.codecs.interface import (
    Answer,
    Codec,
    Collated,
    DecodedRequest,
    Encoded,
    Head,
    Receipt,
    Reply,
    RequestHead,
    Results,
    Wire,
)
from batchedapi_serving.codecs.item_codec import CallCodec, ItemCodec
from batchedapi_serving.codecs.named_codec import NamedCodec
from batchedapi_serving.codecs.results import ItemResults, TensorResults
from batchedapi_serving.codecs.tensor_codec import TensorCodec
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import MethodSettings


def codec_for(
    method: MethodSpec, settings: MethodSettings, api_name: str, receipts: Receipts = Receipts.OFF
) -> Codec:
    """The codec of one method.

    Args:
        api_name: Of the BatchedAPI, which the protocols call the model.
        receipts: Where answers carry the receipt, if dispatch gives one.
    """
    batching = settings.batching
    most_rows = batching.max_batch_size or method.max_batch_size
    if batching.size_unit is not SizeUnit.ROWS:  # of so many requests each may have many rows
        most_rows *= contract.MAX_BATCH_SIZE_LIMIT
    return codec_of(method, api_name, receipts, most_rows)


def codec_of(
    method: MethodSpec,
    api_name: str = "",
    receipts: Receipts = Receipts.OFF,
    most_rows: int = contract.MAX_BATCH_SIZE_LIMIT,
) -> Codec:
    """The codec of one method for batches of so many rows; see codec_for."""
    if not method.batched:
        return CallCodec(method, api_name, receipts)
    if not method.inputs:
        return ItemCodec(method, api_name, receipts)
    if method.single_input and not method.variable:
        return TensorCodec(method, api_name, receipts)
    return NamedCodec(method, api_name, receipts, most_rows)
