"""From the language of a route, and the content type, to the decoder of that language.

A language is imported with its first request: model processes use the codecs too, and user code
there may bring its own versions of what gRPC and msgpack need.
"""

from typing import Final, Literal, assert_never

from batchedapi_core import contract
from batchedapi_serving.codecs.arrays import decode_npy
from batchedapi_serving.codecs.interface import Codec, DecodedRequest, Head, Wire
from batchedapi_serving.codecs.json_values import (
    instances_of,
    is_json,
    media_type,
    parse_items,
    parse_json,
    unsupported,
)
from batchedapi_serving.codecs.replies import INSTANCES, NPY, NPY_TYPE
from batchedapi_serving.errors import InvalidInputError, UnsupportedTypeError, brief

MSGPACK_TYPES: Final = (
    b"application/msgpack",
    b"application/x-msgpack",
    b"application/vnd.msgpack",
)


def decode(
    codec: Codec,
    wire: Literal[Wire.V1, Wire.V2, Wire.GRPC, Wire.EMBEDDINGS, Wire.RERANK],
    head: Head,
    body: bytes,
) -> DecodedRequest:
    """See Codec.decode; of all languages but the plain one."""
    match wire:
        case Wire.V1:
            return decode_v1(codec, head, body)
        case Wire.V2:
            from batchedapi_serving.codecs.open_inference import decode_v2  # noqa: PLC0415 - see above

            return decode_v2(codec, head, body)
        case Wire.GRPC:
            from batchedapi_serving.codecs.open_inference_grpc import decode_grpc  # noqa: PLC0415 - see above

            return decode_grpc(codec, head, body)
        case Wire.EMBEDDINGS | Wire.RERANK:
            from batchedapi_serving.codecs.openai import decode_openai  # noqa: PLC0415 - see above

            return decode_openai(codec, wire, head, body)
        case unknown:
            assert_never(unknown)


def decode_msgpack(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """A request of Wire.PLAIN whose content type is msgpack."""
    from batchedapi_serving.codecs import msgpack_rows  # noqa: PLC0415 - see above

    return msgpack_rows.decode_msgpack(codec, head, body)


def decode_v1(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """KServe's v1, a list of rows and nothing else; answered like it on the plain route."""
    if not is_json(head.content_type):
        raise unsupported(head.content_type, contract.JSON)
    value = parse_json(body) if codec.method.inputs else parse_items(body)
    rows = instances_of(value)
    if rows is None:
        members = f"an object with {brief(list(value))}" if type(value) is dict else brief(value)
        raise InvalidInputError(
            f'body: expected {{"instances": [...]}} and nothing beside it, got {members}'
        )
    return codec.from_rows(rows, "instances", head).decoded(INSTANCES)


def is_msgpack(content_type: bytes) -> bool:
    """Whether a content type says msgpack."""
    return media_type(content_type) in MSGPACK_TYPES


def decode_other(codec: Codec, head: Head, body: bytes) -> DecodedRequest:
    """A request whose content type is not JSON.

    Raises:
        UnsupportedTypeError: nor one of the others; or .npy, which holds one array, for a method of
            several.
        ClientError: see decode_npy and decode_msgpack.
    """
    method = codec.method
    if is_msgpack(head.content_type):
        return decode_msgpack(codec, head, body)
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
