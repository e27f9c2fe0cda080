"""What a predictor imports.

It is loaded when it is asked for: the command line has nothing to lose before it hears signals.
"""

TYPE_CHECKING = False  # as typing has it, which takes longer to import than all of the rest
if TYPE_CHECKING:
    from batchedapi_serving.predictor import (
        Context,
        Embeddings,
        ItemError,
        Reranker,
        Response,
        SizeOf,
        SubmitError,
        Tensor,
        Upload,
        batched,
        endpoint,
        fork_safe,
    )

__all__ = [
    "Context",
    "Embeddings",
    "ItemError",
    "Reranker",
    "Response",
    "SizeOf",
    "SubmitError",
    "Tensor",
    "Upload",
    "batched",
    "endpoint",
    "fork_safe",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from batchedapi_serving import predictor  # noqa: PLC0415 - see above

    return getattr(predictor, name)
