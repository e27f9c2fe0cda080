"""Ready predictors of texts; with the real library in tests/contract/examples."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchedapi_serving import Context, Embeddings, ItemError, Reranker


class Model:
    """Embeds a text as its length, and scores a pair by those of both; a word is a token."""

    def __init__(self, path: str = "", device: str = "cpu") -> None:
        self.made_of = path, device
        self.batches: list[int] = []

    def encode(self, texts: list[str], *, batch_size: int, normalize_embeddings: bool) -> Any:
        """As SentenceTransformer has it."""
        self.batches.append(batch_size)
        assert normalize_embeddings
        return np.array([[len(text)] for text in texts], np.float32)

    def predict(self, pairs: list[list[str]], *, batch_size: int) -> Any:
        """As CrossEncoder has it."""
        self.batches.append(batch_size)
        return np.array([len(a) * len(b) for a, b in pairs], np.float32)

    def tokenizer(self, *texts: list[str], truncation: bool) -> Any:
        """One list, or two of pairs."""
        assert truncation
        return {"input_ids": [" ".join(row).split() for row in zip(*texts, strict=True)]}


class Own(Embeddings):
    """A subclass that brings its model."""

    def __init__(self) -> None:
        self.model = Model()


def context(model_path: str | None = None) -> Context:
    """Of a model process on a CPU."""
    return Context("api", 0, 1, 1, "cpu", model_path=model_path)


def test_a_batch_is_one_call_of_the_model() -> None:
    """The server chose its rows: they are neither sorted nor divided again."""
    predictor = Own()

    answers = predictor.embeddings(["a b", [7, 8], "c"])

    assert [{"embedding": [3.0], "tokens": 2}, {"embedding": [1.0], "tokens": 1}] == answers[::2]
    assert isinstance(answers[1], ItemError)
    assert (422, "expected a text; token ids are not taken") == (
        answers[1].status, answers[1].message,
    )  # fmt: skip
    assert [2] == predictor.model.batches


def test_nothing_is_asked_of_the_model_for_wrong_rows_alone() -> None:
    """A tokenizer refuses an empty list."""
    predictor = Own()

    assert [422] == [answer.status for answer in predictor.embeddings([None])]
    assert [] == predictor.model.batches


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

    answers = predictor.rerank([["a b", "c"], "text", ["a"], ["a", 5]])

    assert {"score": 3.0, "tokens": 3} == answers[0]
    assert [422] * 3 == [answer.status for answer in answers[1:]]
