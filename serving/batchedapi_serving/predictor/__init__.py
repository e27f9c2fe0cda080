"""Declarations, tensors and methods: as users write them, and as the server knows them.

    text ── api ── spec      ready predictors of texts; decorators and the errors of a predictor;
                             the methods that they declare

A predictor is found, started and warmed up by the model process alone. numpy is not imported here:
the supervisor imports this too.
"""

from batchedapi_serving.predictor.api import (
    Context,
    ItemError,
    Response,
    SubmitError,
    Submitter,
    Upload,
    batched,
    endpoint,
    fork_safe,
)
from batchedapi_serving.predictor.spec import (
    DTYPES,
    SINGLE_INPUT,
    SINGLE_OUTPUT,
    Measure,
    MethodSpec,
    SizeOf,
    Tensor,
    default_method,
)
from batchedapi_serving.predictor.text import Embeddings, Reranker

__all__ = [
    "DTYPES",
    "SINGLE_INPUT",
    "SINGLE_OUTPUT",
    "Context",
    "Embeddings",
    "ItemError",
    "Measure",
    "MethodSpec",
    "Reranker",
    "Response",
    "SizeOf",
    "SubmitError",
    "Submitter",
    "Tensor",
    "Upload",
    "batched",
    "default_method",
    "endpoint",
    "fork_safe",
]
