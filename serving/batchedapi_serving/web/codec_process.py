"""Program of a codec process: takes large bodies apart and writes their answers, one at a time.

Started by a web process with its first large body (see large_bodies), with the runtime folder and
the descriptor of a socket. To it:
    {"decode": number, "method": spec, "wire", "content_type", "query", "headers", "packed"}
                                                    and the body, gzip if it is packed
    {"answer": number, "request_id", ...}           results or an error, as pack_outcome gives
    {"forget": number}                              nobody waits for an answer any more
From it, to all but the last:
    {"rows", "sizes", "shapes", "payload"}          rows, as pack_rows gives
    {"error"}                                       the body is refused
    {"status", "content_type", "retry_after", "headers"} and the body of the response
"""

import gc
import socket
import sys
import warnings
from collections.abc import Sequence

import orjson

from batchedapi_serving.codecs import Answer, Codec, DecodedRequest, RequestHead, Wire, codec_for
from batchedapi_serving.dispatch.messages import answer_of, error_meta, pack_rows
from batchedapi_serving.errors import ServingError
from batchedapi_serving.ipc import Meta, encode_frame, read_frames
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import give_memory_back, give_way_for_memory, kill_with_parent
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.limits import inflated

_Said = tuple[Meta, Sequence[bytes]]


class CodecProcess:
    """Owner of the replies of requests that are being run."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._asked: dict[int, tuple[Codec, DecodedRequest]] = {}
        self._codecs: dict[bytes, Codec] = {}
        """By the method's spec as JSON."""

    def take(self, meta: Meta, payload: bytes) -> _Said | None:
        """Answer a frame; None: it needs no answer."""
        match meta:
            case {"decode": int(number)}:
                return self._decode(number, meta, payload)
            case {"answer": int(number), "request_id": request_id}:
                codec, (rows, _, reply, _, _) = self._asked.pop(number)
                try:
                    return _response(answer_of(meta, payload, codec, reply, rows))
                except ServingError as error:
                    return _response(reply.problem(error, request_id))
            case {"forget": int(number)}:
                self._asked.pop(number, None)
                return None
        raise AssertionError(f"frame with {', '.join(meta)}")

    def _decode(self, number: int, meta: Meta, body: bytes) -> _Said:
        head = RequestHead(
            meta["content_type"].encode("latin-1"),
            meta["query"].encode("latin-1"),
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in meta["headers"]],
        )
        spec, settings = orjson.dumps(meta["method"]), self._settings
        if spec not in self._codecs:
            method = MethodSpec.from_json(orjson.loads(spec))
            of_method = settings.of_method(method.name)
            self._codecs[spec] = codec_for(method, of_method, settings.name, settings.receipts)
        codec = self._codecs[spec]
        try:
            if meta["packed"]:
                body = inflated(body, settings.max_body_bytes)
            decoded = codec.decode(Wire(meta["wire"]), head, body)
        except ServingError as error:
            return {"error": error_meta(error)}, ()
        # The rows are the web process's from here on.
        self._asked[number] = codec, decoded._replace(payload=None, sizes=None, shapes=None)
        return pack_rows(decoded)


def _response(answer: Answer) -> _Said:
    meta = {
        "status": answer.status,
        "content_type": answer.content_type.decode("latin-1"),
        "retry_after": answer.retry_after,
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in answer.headers],
    }
    return meta, (answer.body,)


def main(runtime: str, descriptor: str) -> None:
    """Serve until the web process closes the socket."""
    settings = ReplicaSettings.read(runtime)
    warnings.simplefilter("ignore")  # whoever makes errors of them means code of their own
    configure_logging(settings.log_level, "codec")
    kill_with_parent()
    give_way_for_memory()
    # A body of a million lists would have the collector walk over all of them again and again.
    gc.disable()
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    process = CodecProcess(settings)
    for meta, payload in read_frames(connection):
        said = process.take(meta, payload)
        if said is not None:
            for piece in (encode_frame(said[0], (), sum(map(len, said[1]))), *said[1]):
                connection.sendall(piece)
        del meta, payload, said
        give_memory_back()


if __name__ == "__main__":
    main(*sys.argv[1:])
