"""Ready predictors of texts; with the real library in tests/contract/examples."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchedapi_serving import Context, Embeddings, Reranker


class Model:
    """Scores a pair by the lengths of both texts; a word is a token."""

    def __init__(self, path: str = "", device: str = "cpu") -> None:
        self.made_of = path, device
        self.batches: list[int] = []

    def predict(self, pairs: list[list[str]], *, batch_size: int, show_progress_bar: bool) -> Any:
        """As CrossEncoder has it, which draws a bar for each batch where logs are at INFO."""
        assert not show_progress_bar
        self.batches.append(batch_size)
        return np.array([len(a) * len(b) for a, b in pairs], np.float32)

    def tokenizer(self, *texts: list[str], truncation: bool) -> Any:
        """The first texts of pairs, and the second."""
        assert truncation
        return {"input_ids": [" ".join(row).split() for row in zip(*texts, strict=True)]}


def context(model_path: str | None = None) -> Context:
    """Of a model process on a CPU."""
    return Context("api", 0, 1, 1, "cpu", model_path=model_path)


def test_nothing_is_asked_of_the_model_for_wrong_rows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tokenizer refuses an empty list."""
    library = SimpleNamespace(SentenceTransformer=Model, CrossEncoder=Model)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    embeddings, reranker = (
        Embeddings({"model": "x"}, context()),
        Reranker({"model": "x"}, context()),
    )

    answers = [*embeddings.embeddings([None, [7, 8]]), *reranker.rerank(["text"])]

    assert [
        "expected a text; token ids are not taken",
        "expected a text; token ids are not taken",
        "expected [query, document], two texts",
    ] == [answer.message for answer in answers]
    assert [] == reranker.model.batches


def test_the_library_loads_what_the_manifest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that was fetched, else the config's; on the device that the server chose."""
    library = SimpleNamespace(SentenceTransformer=Model, CrossEncoder=Model)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)

    assert ("/m", "cpu") == Embeddings({"model": "x"}, context("/m")).model.made_of
    assert ("x", "cpu") == Reranker({"model": "x"}, context()).model.made_of
    with pytest.raises(ValueError, match=r"expected predictor\.model\.uri, or config\.model"):
        Reranker({}, context())


def test_a_pair_is_two_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else came fails alone."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=Model))
    predictor = Reranker({"model": "x"}, context())

    answers = predictor.rerank([["a b", "c"], "text", ["a"], ["a", 5], ["a", "b"]])

    assert [{"score": 3.0, "tokens": 3}, {"score": 1.0, "tokens": 2}] == answers[::4]
    assert [422] * 3 == [answer.status for answer in answers[1:4]]
    assert [2] == predictor.model.batches
