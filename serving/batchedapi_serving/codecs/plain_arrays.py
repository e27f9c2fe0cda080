"""What the plain route takes besides JSON where a method has tensors: .npy and msgpack."""

from typing import Final

from batchedapi_core import contract
from batchedapi_serving.codecs import wires
from batchedapi_serving.codecs.interface import Codec, Decoded, Head
from batchedapi_serving.codecs.json_values import media_type, unsupported
from batchedapi_serving.codecs.npy import decode_npy
from batchedapi_serving.codecs.plain_replies import NPY, NPY_TYPE
from batchedapi_serving.errors import UnsupportedTypeError

MSGPACK_TYPES: Final = (
    b"application/msgpack",
    b"application/x-msgpack",
    b"application/vnd.msgpack",
)


def is_msgpack(content_type: bytes) -> bool:
    """Whether a content type says msgpack."""
    return media_type(content_type) in MSGPACK_TYPES


def decode_other(codec: Codec, head: Head, body: bytes) -> Decoded:
    """A request whose content type is not JSON.

    Raises:
        UnsupportedTypeError: nor one of the others; or .npy, which holds one array, for a method of
            several.
        ClientError: see decode_npy and decode_msgpack.
    """
    method = codec.method
    if is_msgpack(head.content_type):
        return wires.decode_msgpack(codec, head, body)
    if media_type(head.content_type) != NPY_TYPE:
        raise unsupported(head.content_type, f"{contract.JSON} or {contract.NPY}")
    if not (method.single_input and method.single_output):
        names = ", ".join([*method.inputs, *method.outputs])
        raise UnsupportedTypeError(
            f"content-type: expected {contract.JSON} for {method.name}, which has named tensors"
            f" ({names}), got {contract.NPY}, which holds one array; send"
            ' {"instances": [{...}]} with one member for each input'
        )
    ((name, tensor),) = method.inputs.items()
    return codec.from_arrays({name: decode_npy(body, tensor)}, "array").decoded(NPY)
