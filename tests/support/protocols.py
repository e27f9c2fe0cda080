"""Codecs, results and requests in every language, for the tests of the protocols."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import orjson

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Codec, DecodedRequest, Receipt, RequestHead, Wire, codec_for
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferRequest
from batchedapi_serving.codecs.open_inference_tensors import raw_of
from batchedapi_serving.codecs.results import (
    ItemResults,
    TensorResults,
)
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings

Tensors = Mapping[str, Tensor]
JSON_HEAD = RequestHead(b"application/json", b"", ())
RECEIPT = Receipt("b-7", 12, 3, 2, 0.0015, 0.004, "full", "iris-0", 1)


def single(inputs: Tensor, outputs: Tensor | None = None, name: str = "predict") -> MethodSpec:
    """A method of one unnamed tensor."""
    declared = {} if outputs is None else {"output": outputs}
    return MethodSpec(
        name, batched=True, inputs={"input": inputs}, single_input=True, outputs=declared
    )


def named(inputs: Tensors, outputs: Tensors, name: str = "predict") -> MethodSpec:
    """A method of named tensors."""
    return MethodSpec(name, batched=True, inputs=inputs, outputs=outputs, single_output=False)


def padded(method: MethodSpec, pad: float = 0) -> MethodSpec:
    """The same, whose rows of different lengths may share a batch."""
    inputs = {
        name: Tensor(one.dtype, one.shape, allow_non_finite=one.allow_non_finite, pad=pad)
        if one.variable
        else one
        for name, one in method.inputs.items()
    }
    return dataclasses.replace(method, inputs=inputs)


ITEMS = MethodSpec("predict", batched=True)
IRIS = single(Tensor("FP32", [4]), Tensor("FP32", [3]))
PAIRS = named(
    {"ids": Tensor("INT64", [2]), "weights": Tensor("FP32", [])},
    {"sum": Tensor("FP32", []), "scaled": Tensor("FP32", [2])},
)


def codec_of(method: MethodSpec, receipts: Receipts = Receipts.ALL) -> Codec:
    """The codec that a replica called iris has for `method`."""
    settings = MethodSettings(method.name, None, None, BatchingSettings())
    return codec_for(method, settings, "iris", receipts)


def tensors(method: MethodSpec, **columns: np.ndarray[Any, Any]) -> TensorResults:
    """The results of a batch, one array for each output."""
    return TensorResults(method, columns, ())


def items(*answers: Any) -> ItemResults:
    """The results of a batch, one JSON value for each row; an Item stands for itself."""
    return ItemResults(
        [a if isinstance(a, Item) else Item(200, "json", orjson.dumps(a)) for a in answers]
    )


def failed_item(status: int, message: str) -> Item:
    """A row that the predictor failed."""
    error = {"code": "item_failed", "message": message, "request_id": None}
    return Item(status, "json", orjson.dumps(error))


def array(dtype: str, values: Any) -> np.ndarray[Any, Any]:
    """An array of a datatype of the protocol."""
    return np.array(values, dtype=Tensor(dtype, []).numpy_dtype)


# ------------------------------------------------------------------ one request, in each language


def plain(codec: Codec, rows: Sequence[Any]) -> DecodedRequest:
    """`{"instances": [...]}` on the plain route."""
    return codec.decode(Wire.PLAIN, JSON_HEAD, orjson.dumps({"instances": rows}))


def packed(codec: Codec, rows: Sequence[Any]) -> DecodedRequest:
    """The same in msgpack."""
    head = RequestHead(b"application/msgpack", b"", ())
    return codec.decode(Wire.PLAIN, head, msgpack.packb({"instances": rows}))


def v1(codec: Codec, rows: Sequence[Any]) -> DecodedRequest:
    """KServe's v1 protocol."""
    return codec.decode(Wire.V1, JSON_HEAD, orjson.dumps({"instances": rows}))


def npy(codec: Codec, rows: np.ndarray[Any, Any]) -> DecodedRequest:
    """An array as numpy.save writes it."""
    stream = io.BytesIO()
    np.save(stream, rows)
    return codec.decode(Wire.PLAIN, RequestHead(b"application/x-npy", b"", ()), stream.getvalue())


def tensor_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> dict[str, Any]:
    """One input of a v2 request."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


def v2(codec: Codec, *inputs: dict[str, Any], **members: Any) -> DecodedRequest:
    """Open Inference Protocol in JSON."""
    return codec.decode(Wire.V2, JSON_HEAD, orjson.dumps({"inputs": inputs, **members}))


def binary_head(length: int) -> RequestHead:
    """The head of a request whose body has JSON of `length` bytes."""
    headers = ((b"inference-header-content-length", b"%d" % length),)
    return RequestHead(b"application/octet-stream", b"", headers)


def v2_binary(
    codec: Codec, *inputs: tuple[str, str, Sequence[int], Any], **members: Any
) -> DecodedRequest:
    """Open Inference Protocol with raw tensors: (name, datatype, shape, array or bytes)."""
    raws = [raw_of(elements) for _, _, _, elements in inputs]
    about = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        for (name, datatype, shape, _), raw in zip(inputs, raws, strict=True)
    ]
    text = orjson.dumps({"inputs": about, **members})
    return codec.decode(Wire.V2, binary_head(len(text)), text + b"".join(raws))


def message(model: str = "iris", **members: Any) -> ModelInferRequest:
    """A gRPC request without inputs."""
    return ModelInferRequest(model_name=model, **members)


def with_raw(
    request: ModelInferRequest, *inputs: tuple[str, str, Sequence[int], Any]
) -> ModelInferRequest:
    """`request` with raw tensors added to it."""
    for name, datatype, shape, elements in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw_of(elements))
    return request


def with_contents(
    request: ModelInferRequest, *inputs: tuple[str, str, Sequence[int], str, Sequence[Any]]
) -> ModelInferRequest:
    """`request` with typed tensors added to it: (name, datatype, shape, member, elements)."""
    for name, datatype, shape, member, elements in inputs:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        getattr(tensor.contents, member).extend(elements)
    return request


def grpc(codec: Codec, request: ModelInferRequest) -> DecodedRequest:
    """Open Inference Protocol over gRPC."""
    head = RequestHead(b"application/grpc", b"", ())
    return codec.decode(Wire.GRPC, head, request.SerializeToString())
