"""Which codec a method has follows from what it declares."""

from batchedapi_serving.codecs.base import Codec
from batchedapi_serving.codecs.item_codec import CallCodec, ItemCodec
from batchedapi_serving.codecs.tensor_codec import TensorCodec
from batchedapi_serving.predictor.api import MethodSpec


def codec_for(method: MethodSpec) -> Codec:
    """The codec of one method."""
    if not method.batched:
        return CallCodec()
    return ItemCodec() if method.inputs is None else TensorCodec(method.inputs)
