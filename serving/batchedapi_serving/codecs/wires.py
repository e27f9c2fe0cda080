"""From the language of a route to the decoder of that language."""

from typing import Literal, assert_never

from batchedapi_serving.codecs.interface import Codec, Decoded, Head, Wire


def decode(
    codec: Codec, wire: Literal[Wire.V1, Wire.V2, Wire.GRPC], head: Head, body: bytes
) -> Decoded:
    """See Codec.decode; of all languages but the plain one.

    A language is imported with its first request: model processes use the codecs too, and user code
    there may bring its own versions of what gRPC and msgpack need.
    """
    match wire:
        case Wire.V1:
            from batchedapi_serving.codecs.v1 import decode_v1  # noqa: PLC0415 - see above

            return decode_v1(codec, head, body)
        case Wire.V2:
            from batchedapi_serving.codecs.open_inference import decode_v2  # noqa: PLC0415 - see above

            return decode_v2(codec, head, body)
        case Wire.GRPC:
            from batchedapi_serving.codecs.grpc_messages import decode_grpc  # noqa: PLC0415 - see above

            return decode_grpc(codec, head, body)
        case unknown:
            assert_never(unknown)


def decode_msgpack(codec: Codec, head: Head, body: bytes) -> Decoded:
    """A request of Wire.PLAIN whose content type is msgpack."""
    from batchedapi_serving.codecs import msgpack_rows  # noqa: PLC0415 - see decode

    return msgpack_rows.decode_msgpack(codec, head, body)
