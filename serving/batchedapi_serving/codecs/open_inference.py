"""The Open Inference Protocol (v2) over HTTP: a request to rows, results to a response.

Tensors may travel in JSON or raw behind it, in both directions and each on its own; the rows are
the same either way, and the same as those of any other language.
"""

from dataclasses import dataclass

import orjson

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs.interface import Answer, Codec, Decoded, Head, Receipt, Results
from batchedapi_serving.codecs.open_inference_binary import HEADER_LENGTH, OCTETS, split_body
from batchedapi_serving.codecs.open_inference_inputs import encode_inputs
from batchedapi_serving.codecs.open_inference_json import (
    dump,
    output_binary,
    output_json,
    read_request,
)
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION, model_name
from batchedapi_serving.codecs.open_inference_outputs import (
    checked_outputs,
    failed_row,
    output_tensors,
    requested,
)
from batchedapi_serving.codecs.replies import JSON_TYPE, receipt_headers, receipt_values
from batchedapi_serving.errors import OverloadedError, ServingError


def decode_v2(codec: Codec, head: Head, body: bytes) -> Decoded:
    """A request of Wire.V2; see Codec.decode."""
    request = read_request(split_body(head, body))
    names = checked_outputs(codec.method, [output.name for output in request.outputs])
    encoded = encode_inputs(codec, request.inputs, head)
    binary = frozenset(output.name for output in request.outputs if output.binary)
    return encoded.decoded(
        OpenInferenceReply(
            model_name(codec.api_name, codec.method.name),
            request.id,
            names,
            binary if names else request.binary,
            codec.receipts,
        )
    )


@dataclass(frozen=True, slots=True)
class OpenInferenceReply:
    """Writes an inference response; see Reply."""

    model: str
    id: str | None
    outputs: tuple[str, ...]
    """In the order to answer them; empty: all."""
    binary: frozenset[str] | bool
    """Names of the outputs to send raw, or whether to send all so."""
    receipts: Receipts

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer.

        The protocol knows no row that failed. The status is that of the first one, as in the other
        languages, and `error` says which; the outputs are there as well, so nothing is lost.
        """
        response: dict[str, object] = {"model_name": self.model, "model_version": MODEL_VERSION}
        if self.id is not None:
            response["id"] = self.id
        if receipt is not None and self.receipts is Receipts.ALL:
            response["parameters"] = receipt_values(receipt)
        failed = failed_row(results, start, stop)
        if failed is not None:
            response["error"] = failed.message
        members, raws = [], []
        for output in requested(output_tensors(results, start, stop), self.outputs):
            if self.binary if isinstance(self.binary, bool) else output.name in self.binary:
                member, raw = output_binary(output)
                raws.append(raw)
            else:
                member = output_json(output)
            members.append(member)
        response["outputs"] = members
        text, headers = dump(response), receipt_headers(receipt)
        status = 200 if failed is None else failed.status
        if not raws:
            return Answer(status, JSON_TYPE, text, headers=headers)
        headers = (*headers, (HEADER_LENGTH, b"%d" % len(text)))
        return Answer(status, OCTETS, b"".join((text, *raws)), headers=headers)

    def problem(self, error: ServingError, request_id: str | None) -> Answer:  # noqa: ARG002 - the protocol has no place for it; the header has it
        """See Reply.problem."""
        return open_inference_problem(error)


def open_inference_problem(error: ServingError) -> Answer:
    """An error as the protocol's clients read it: a string."""
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, JSON_TYPE, orjson.dumps({"error": str(error)}), retry_after)
