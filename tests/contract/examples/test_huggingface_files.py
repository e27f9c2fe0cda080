"""Folders of Hugging Face as they are, made small here; nothing is fetched."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import ItemError
from batchedapi_serving.errors import LoadError
from batchedapi_serving.formats import ModelFile, class_of
from huggingface_models import small_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, one another's


def served(folder: Path, **facts: Any) -> Any:
    """A predictor of the folder."""
    return class_of(ModelFile(folder, ModelFormat.HUGGINGFACE, **facts))()


def refused(folder: Path, **facts: Any) -> str:
    """The sentence for a folder that is not served."""
    with pytest.raises(LoadError) as caught:
        served(folder, **facts)
    return str(caught.value)


def test_texts_are_classified(tmp_path: Path) -> None:
    """As the pipeline itself does; a row that is no text fails alone."""
    folder = small_model(tmp_path, transformers.BertForSequenceClassification)
    rows = ["good day", "bad"]

    found = served(folder).predict([rows[0], 7, rows[1]])

    pipeline = transformers.pipeline("text-classification", model=str(folder))
    assert [one["label"] for one in pipeline(rows)] == [found[0]["label"], found[2]["label"]]
    assert isinstance(found[1], ItemError)
    assert "expected a text, got 7" in str(found[1])
    assert [] == [one for one in served(folder).predict([7]) if not isinstance(one, ItemError)]


def test_parameters_of_the_call_are_of_the_config(tmp_path: Path) -> None:
    """Such as the number of labels in an answer."""
    folder = small_model(tmp_path, transformers.BertForSequenceClassification)

    (found,) = served(folder, config={"parameters": {"top_k": 2}}).predict(["good"])

    assert 2 == len(found)


def test_tokens_are_classified(tmp_path: Path) -> None:
    """One answer for each word."""
    folder = small_model(tmp_path, transformers.BertForTokenClassification)

    found = served(folder).predict(["good day", "bad"])

    assert [2, 1] == [len(one) for one in found]


def test_features_are_a_vector_for_each_token(tmp_path: Path) -> None:
    """Without one list more around them, and as many in company as alone."""
    model = served(small_model(tmp_path, transformers.BertModel))

    found = model.predict(["good day", "bad"])

    assert [(2, 16), (1, 16)] == [np.shape(one) for one in found]
    np.testing.assert_allclose(model.predict(["bad"])[0], found[1], rtol=1e-5)


def test_images_are_bytes_in_base64(tmp_path: Path) -> None:
    """A path or an address is not opened, which the pipeline would do."""
    model = served(small_model(tmp_path, transformers.ViTForImageClassification))
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "PNG")
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")

    found = model.predict([base64.b64encode(file.getvalue()).decode(), str(tmp_path / "a.png")])

    assert {"label", "score"} == set(found[0][0])
    assert isinstance(found[1], ItemError)


def test_speech_is_a_list_of_samples(tmp_path: Path) -> None:
    """At the rate of the model; a file would need ffmpeg."""
    model = served(small_model(tmp_path, transformers.Wav2Vec2ForCTC))

    found = model.predict([[0.0, 0.5] * 400, "speech.wav"])

    assert "text" in found[0]
    assert isinstance(found[1], ItemError)


@pytest.mark.parametrize("root", ["plain", "ForMaskedLM", "without config.json"])
def test_sentences_are_vectors(tmp_path: Path, root: str) -> None:
    """A folder of sentence-transformers says so by its modules, whatever its first one is."""
    words = Transformer(str(small_model(tmp_path / "bert", transformers.BertModel)))
    model = SentenceTransformer(modules=[words, Pooling(16)])
    folder = tmp_path / "sentences"
    model.save(str(folder))
    config = folder / "config.json"
    if root == "ForMaskedLM":
        config.write_text(config.read_text().replace('"BertModel"', '"BertForMaskedLM"'))
        assert "BertForMaskedLM" in config.read_text()
    if root == "without config.json":
        below = folder / "0_Transformer"
        below.mkdir()
        for file in [*folder.glob("*oken*"), *folder.glob("sentence_*"), *folder.glob("model.*")]:
            file.rename(below / file.name)
        config.rename(below / config.name)
        modules = folder / "modules.json"
        modules.write_text(modules.read_text().replace('"path": ""', '"path": "0_Transformer"'))
        assert "0_Transformer" in modules.read_text()
    rows = ["good day", "bad"]

    found = served(folder).predict(rows)

    np.testing.assert_allclose(model.encode(rows), np.array(found), rtol=1e-5)


def test_weights_that_are_a_pickle_need_trust(tmp_path: Path) -> None:
    """The message says why."""
    folder = small_model(tmp_path, transformers.BertForSequenceClassification, safe=False)

    assert "expected weights in safetensors" in refused(folder)
    assert 1 == len(served(folder, trusted=True).predict(["good"]))


def test_an_architecture_for_something_else_is_refused(tmp_path: Path) -> None:
    """With the field that says the task."""
    folder = small_model(tmp_path, transformers.BertForMaskedLM)

    assert "got BertForMaskedLM; say the task in spec.predictor.config.task" in refused(folder)


def test_half_of_the_weights_are_refused(tmp_path: Path) -> None:
    """In one sentence."""
    folder = small_model(tmp_path, transformers.BertForSequenceClassification)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    assert "cannot be loaded as huggingface" in refused(folder)
