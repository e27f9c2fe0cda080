"""KServe's v1 protocol: `{"instances": [...]}` to `{"predictions": [...]}`.

The rows, the answer and the errors are those of `{"instances": [...]}` on the plain route; a list
of rows is all the protocol has.
"""

from batchedapi_core import contract
from batchedapi_serving.codecs.interface import Codec, Decoded, Head
from batchedapi_serving.codecs.json_values import instances_of, is_json, parse_json, unsupported
from batchedapi_serving.codecs.plain_replies import INSTANCES
from batchedapi_serving.errors import InvalidInputError, brief


def decode_v1(codec: Codec, head: Head, body: bytes) -> Decoded:
    """A request of Wire.V1; see Codec.decode."""
    if not is_json(head.content_type):
        raise unsupported(head.content_type, contract.JSON)
    value = parse_json(body)
    rows = instances_of(value)
    if rows is None:
        members = f"an object with {brief(list(value))}" if type(value) is dict else brief(value)
        raise InvalidInputError(
            f'body: expected {{"instances": [...]}} and nothing beside it, got {members}'
        )
    return codec.from_rows(rows, "instances", head).decoded(INSTANCES)
