"""Ready predictors of texts, by models of sentence-transformers: embeddings, and scores of pairs.

A batch is one call of the model, which pads its rows to the longest: the server has chosen them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from batchedapi_serving.predictor.api import Context, ItemError, batched
from batchedapi_serving.predictor.spec import SizeOf


class Embeddings:
    """Embeds texts, for `/v1/embeddings` and every other route; vectors have length 1.

    Served as it is, it loads the model that `predictor.model.uri` or `predictor.config.model`
    names: a folder, or a name on Hugging Face. A subclass may set `model` in its own constructor.

    Args:
        config: Of the manifest.
        context: Of the server.

    Attributes:
        model: A SentenceTransformer, or anything that has its `encode`.
    """

    model: Any

    def __init__(self, config: dict[str, Any], context: Context) -> None:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - for who serves this

        self.model = SentenceTransformer(_path(config, context), device=context.device)

    @batched(
        example="How many replicas does this need?",
        size_of=SizeOf.length(per=4),  # about a token
        max_batch_size=4096,
    )
    def embeddings(self, inputs: list[Any]) -> list[Any]:
        """Answer `{"embedding": [...], "tokens": ...}` for each text of `inputs`.

        Without `tokens` where the model has no attention mask, such as a table of word vectors.
        """
        return _answered(
            inputs,
            lambda row: isinstance(row, str),
            self._embedded,
            "a text; token ids are not taken",
        )

    def _embedded(self, texts: list[str]) -> Iterable[Any]:
        import torch  # noqa: PLC0415 - as above

        # All that the model computed has the mask too, so that no text is tokenized again to count.
        rows = self.model.encode(
            texts, batch_size=len(texts), output_value=None, show_progress_bar=False
        )
        vectors = torch.stack([row["sentence_embedding"] for row in rows]).float()
        unit = torch.nn.functional.normalize(vectors).numpy(force=True)
        if "attention_mask" not in rows[0]:
            return ({"embedding": vector} for vector in unit)
        tokens = torch.stack([row["attention_mask"] for row in rows]).sum(1).tolist()
        return (
            {"embedding": vector, "tokens": count}
            for vector, count in zip(unit, tokens, strict=True)
        )


class Reranker:
    """Scores how well documents answer a query, for `/v1/rerank` and every other route.

    A row is `[query, document]`. The model comes from where that of Embeddings comes.

    Args:
        config: Of the manifest.
        context: Of the server.

    Attributes:
        model: A CrossEncoder, or anything that has its `predict` and `tokenizer`.
    """

    model: Any

    def __init__(self, config: dict[str, Any], context: Context) -> None:
        from sentence_transformers import CrossEncoder  # noqa: PLC0415 - for who serves this

        self.model = CrossEncoder(_path(config, context), device=context.device)

    @batched(
        example=["How many replicas?", "As many as the load needs."],
        size_of=SizeOf.bytes(per=4),  # about a token
        max_batch_size=4096,
    )
    def rerank(self, pairs: list[Any]) -> list[Any]:
        """Answer `{"score": ..., "tokens": ...}` for each of `pairs`."""
        return _answered(pairs, _is_pair, self._scored, "[query, document], two texts")

    def _scored(self, pairs: list[Any]) -> Iterable[Any]:
        scores = self.model.predict(pairs, batch_size=len(pairs), show_progress_bar=False)
        ids = self.model.tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True)
        return (
            {"score": score, "tokens": len(of_row)}
            for score, of_row in zip(scores, ids["input_ids"], strict=True)
        )


def _path(config: dict[str, Any], context: Context) -> str:
    path = context.model_path or config.get("model")
    if not isinstance(path, str):
        raise ValueError(  # noqa: TRY004 - one error for both
            "expected predictor.model.uri, or config.model with a folder or a name on Hugging Face,"
            f" got {path!r}"
        )
    return path


def _is_pair(row: Any) -> bool:
    return isinstance(row, list) and [type(text) for text in row] == [str, str]


def _answered(
    rows: Sequence[Any],
    fits: Callable[[Any], bool],
    answer: Callable[[list[Any]], Iterable[Any]],
    expected: str,
) -> list[Any]:
    """Answers to rows that fit, together, and an error for each other row alone."""
    known = [row for row in rows if fits(row)]
    answers = iter(answer(known) if known else ())
    return [next(answers) if fits(row) else ItemError(422, f"expected {expected}") for row in rows]
