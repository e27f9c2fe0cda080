"""A folder of Hugging Face: a pipeline of transformers, or the encoder of sentence-transformers.

A row is a text; of images the bytes of a file in base64; of speech the samples, at the rate of the
model. `predictor.config` may say the `task`, and `parameters` of the pipeline's call.
"""

import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from batchedapi_serving.errors import brief
from batchedapi_serving.formats.interface import ModelFile, imported, refused
from batchedapi_serving.formats.items import items_class
from batchedapi_serving.predictor import ItemError

_EXTRA: Final = "huggingface"
_FEATURES: Final = "feature-extraction"
_TASKS: Final = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForConditionalGeneration": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
    "Model": _FEATURES,
}
"""Ends of the names of architectures, and what they are for."""
_SENTENCES: Final = "modules.json"
_EXAMPLE: Final = "a text"


def class_of(file: ModelFile) -> type:
    """See formats.class_of."""
    if not (file.trusted or any(file.path.glob("**/*.safetensors"))):
        raise refused(
            file,
            "expected weights in safetensors, found none in the folder; any others are pickles,"
            " which run whatever code is in them: if you know who made them set"
            " spec.predictor.model.trusted: true (--trusted), else convert them",
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all of it is in the folder, or it is not served
    sentences = (file.path / _SENTENCES).exists()
    task = str(file.config.get("task") or (_FEATURES if sentences else _task_of(file)))
    run = _encoder(file) if sentences else _pipeline(file, task)
    read = _READERS.get(task, _text)

    def answers(items: list[Any]) -> list[Any]:
        rows = [_read(read, item) for item in items]
        found = iter(run([row for row in rows if not isinstance(row, ItemError)]))
        return [row if isinstance(row, ItemError) else next(found) for row in rows]

    return items_class(answers, _EXAMPLE if read is _text else None)


def _task_of(file: ModelFile) -> str:
    config = json.loads((file.path / "config.json").read_text())
    names = [str(name) for name in config.get("architectures") or ["none"]]
    task = next((task for end, task in _TASKS.items() if names[0].endswith(end)), None)
    if task is None:
        raise refused(
            file,
            f"expected an architecture that ends with {', '.join(_TASKS)}, got {names[0]}; say the"
            " task in spec.predictor.config.task, or write a class",
        )
    return task


def _options(file: ModelFile) -> dict[str, Any]:
    """Of either library: nothing that runs code is loaded, unless it is trusted."""
    return {
        "device": file.device,
        "trust_remote_code": file.trusted,
        "model_kwargs": {} if file.trusted else {"use_safetensors": True},
    }


def _pipeline(file: ModelFile, task: str) -> Callable[[list[Any]], Sequence[Any]]:
    transformers = imported(file, "transformers", _EXTRA)
    imported(file, "torch", _EXTRA)
    pipeline = transformers.pipeline(task, model=str(file.path), **_options(file))
    tokenizer = pipeline.tokenizer
    # Features have a vector for each token, those that fill a row up included: of one row, none.
    alone = task == _FEATURES or (tokenizer is not None and tokenizer.pad_token is None)
    parameters = dict(file.config.get("parameters") or {})

    def run(rows: list[Any]) -> Sequence[Any]:
        if not rows:
            return []
        found: list[Any] = pipeline(rows, batch_size=1 if alone else len(rows), **parameters)
        # Of one row the features are in one list more.
        return [one[0] for one in found] if task == _FEATURES else found

    return run


def _encoder(file: ModelFile) -> Callable[[list[Any]], Sequence[Any]]:
    library = imported(file, "sentence_transformers", _EXTRA)
    model = library.SentenceTransformer(str(file.path), **_options(file))

    def run(rows: list[Any]) -> Sequence[Any]:
        return list(model.encode(rows, batch_size=max(1, len(rows)), show_progress_bar=False))

    return run


def _read(read: Callable[[Any], Any], item: Any) -> Any:
    try:
        return read(item)
    except (ValueError, TypeError, OSError) as error:
        return ItemError(422, f"expected {_WORDS[read]}, got {brief(item)} ({error})")


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"a {type(item).__name__}")
    return item


def _image(item: Any) -> Any:
    """Never a path or an address, which a pipeline would open."""
    from PIL import Image  # noqa: PLC0415 - comes with the extra

    return Image.open(io.BytesIO(base64.b64decode(item, validate=True))).convert("RGB")


def _samples(item: Any) -> "np.ndarray[Any, Any]":
    samples = np.asarray(item, np.float32)
    if samples.ndim != 1 or isinstance(item, str):
        raise TypeError(f"{samples.ndim} dimensions")
    return samples


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "image-classification": _image,
    "automatic-speech-recognition": _samples,
}
_WORDS: Final[dict[Callable[[Any], Any], str]] = {
    _text: "a text",
    _image: "the bytes of an image in base64",
    _samples: "a list of samples",
}
