"""Small projects for other servers, in the shape of public ones; every line is written here."""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Elsewhere:
    """One project, and what its first request is answered once it is migrated."""

    name: str
    file: str
    files: dict[str, str]
    row: Any = None
    answer: Any = None
    edit: str | None = None
    """What a person writes in the one line that the command names."""
    refused: str | None = None
    """Why the command does not take it, a part of what it says."""
    models: tuple[str, ...] = ()
    """Files that a model of y = 2 a + b is pickled into."""


CORTEX: Final = """- name: {name}
  kind: RealtimeAPI
  predictor: {{type: python, path: predictor.py{more}}}
"""
KSERVE: Final = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  predictor:
    minReplicas: 1
{batcher}    model:
      modelFormat: {{name: {format}}}
      storageUri: "file://FOLDER/model"
      resources: {{requests: {{cpu: 100m, memory: 1Gi}}}}
"""
TRITON: Final = """name: "{name}"  # a comment
backend: "{backend}"
max_batch_size: {size}
input [
  {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }}
]
output [ {{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ {out} ] }} ]
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
{more}
"""
EXECUTE: Final = """import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        out = pb_utils.get_output_config_by_name(self.config, "OUTPUT0")
        self.dtype = pb_utils.triton_string_to_numpy(out["data_type"])

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            y = pb_utils.Tensor("OUTPUT0", ({expression}).astype(self.dtype))
            answers.append(pb_utils.InferenceResponse(output_tensors=[y]))
        return answers
"""
BENTO: Final = """import bentoml
import numpy as np
from bentoml.io import JSON, NumpyNdarray

runner = bentoml.sklearn.get("{tag}").to_runner()
svc = bentoml.Service("{name}", runners=[runner])

@svc.api(input=NumpyNdarray({array}), output=NumpyNdarray())
def {route}(series):
    return runner.predict.run(series)
"""
PROPERTIES: Final = """inference_address=http://0.0.0.0:8080
default_workers_per_model=1
{models}"""

PROJECTS: Final = (
    Elsewhere(
        "cortex iris-classifier",
        "cortex.yaml",
        {
            "cortex.yaml": CORTEX.format(name="iris-classifier", more=""),
            "predictor.py": """
class PythonPredictor:
    def __init__(self, config):
        self.labels = ["setosa", "versicolor"]

    def predict(self, payload):
        return self.labels[int(payload["petal_length"] > 2)]
""",
            "sample.json": '{"sepal_length": 5.2, "petal_length": 1.4}',
        },
        {"petal_length": 4.0},
        "versicolor",
    ),
    Elsewhere(
        "cortex text-generator",
        "cortex.yaml",
        {
            "cortex.yaml": CORTEX.format(name="text-generator", more=", config: {suffix: '!'}")
            + "  compute: {cpu: 1, inf: 1}\n",
            "predictor.py": """
class PythonPredictor:
    def __init__(self, config):
        self.suffix = config["suffix"]

    def predict(self, payload):
        return payload["text"] + self.suffix
""",
        },
        {"text": "hello"},
        "hello!",
        edit='EXAMPLE = {"text": "a"}',
    ),
    Elsewhere(
        "cortex image-classifier with batching",
        "cortex.yaml",
        {
            "cortex.yaml": CORTEX.format(
                name="image-classifier",
                more=", server_side_batching: {max_batch_size: 8, batch_interval: 0.01}",
            ),
            "predictor.py": """
class PythonPredictor:
    def __init__(self, config):
        pass

    def predict(self, payload):
        return [sum(one["pixels"]) for one in payload]
""",
            "sample.json": '{"pixels": [1, 2]}',
        },
        {"pixels": [3, 4]},
        7,
    ),
    Elsewhere(
        "cortex sentiment-analyzer",
        "cortex.yaml",
        {
            "cortex.yaml": CORTEX.format(
                name="sentiment-analyzer", more=", processes_per_replica: 2, threads_per_process: 1"
            )
            + "  autoscaling: {min_replicas: 1, max_replicas: 3}\n",
            "predictor.py": """
class PythonPredictor:
    def __init__(self, config):
        self.good = {"good", "fine"}

    def predict(self, payload):
        return {"label": "positive" if payload["review"] in self.good else "negative"}
""",
            "sample.json": '{"review": "fine"}',
        },
        {"review": "bad"},
        {"label": "negative"},
    ),
    Elsewhere(
        "cortex batch job",
        "cortex.yaml",
        {"cortex.yaml": "- name: offline\n  kind: BatchAPI\n  predictor: {type: python}\n"},
        refused="run a batch or a task as a Job of Kubernetes",
    ),
    Elsewhere(
        "bentoml 1.0 iris_classifier",
        "bentoconfiguration.yaml",
        {
            "bentoconfiguration.yaml": "api_server: {workers: 1}\nrunners:\n  batching:"
            " {enabled: true, max_batch_size: 100, max_latency_ms: 500}\n",
            "service.py": BENTO.format(
                tag="iris_clf:latest",
                name="iris_classifier",
                array='dtype="float32", shape=(-1, 2)',
                route="classify",
            ),
        },
        [1.0, 3.0],
        5.0,
        models=("saved_model.pkl",),
    ),
    Elsewhere(
        "bentoml 1.0 regression, shape unsaid",
        "bentoconfiguration.yaml",
        {
            "bentoconfiguration.yaml": "runners:\n  linear:\n    batching: {max_batch_size: 16,"
            " max_latency_ms: 100}\n  timeout: 60\n",
            "service.py": BENTO.format(tag="linear:1", name="linear", array="", route="predict"),
            "sample.json": "[1.0, 2.0]",
        },
        [1.0, 1.0],
        3.0,
        models=("saved_model.pkl",),
    ),
    Elsewhere(
        "bentoml 1.0 without batching",
        "service.py",
        {
            "service.py": BENTO.format(
                tag="prices:v2",
                name="prices",
                array="dtype=np.float64, shape=(-1, 2)",
                route="price",
            ),
        },
        [0.0, 4.0],
        4.0,
        models=("saved_model.pkl",),
    ),
    Elsewhere(
        "bentoml 1.4 summarization",
        "service.py",
        {
            "service.py": """from __future__ import annotations

import bentoml


@bentoml.service(resources={"cpu": "1"}, traffic={"timeout": 30})
class Summarization:
    def __init__(self) -> None:
        self.length = 3

    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=1000)
    def summarize(self, texts: list[str]) -> list[str]:
        return [text[: self.length] for text in texts]
""",
            "sample.json": '"a long text"',
        },
        "hello",
        "hel",
    ),
    Elsewhere(
        "bentoml 1.4 embeddings in arrays",
        "service.py",
        {
            "service.py": """import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from typing import Annotated


@bentoml.service(workers=2)
class Embeddings:
    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=200)
    def encode(
        self, x: Annotated[np.ndarray, DType("float32"), Shape((-1, 2))]
    ) -> np.ndarray:
        return x * 2
""",
        },
        [1.0, 2.0],
        [2.0, 4.0],
    ),
    Elsewhere(
        "bentoml 1.4 arrays of any shape",
        "service.py",
        {
            "service.py": """import bentoml
import numpy as np


@bentoml.service
class Totals:
    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=200)
    def total(self, x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1)
""",
            "sample.json": "[1.0, 2.0]",
        },
        [1.0, 2.5],
        3.5,
    ),
    Elsewhere(
        "bentoml 1.4 one at a time",
        "service.py",
        {
            "service.py": """import bentoml


@bentoml.service
class Greeter:
    @bentoml.api
    def greet(self, name: str, loud: bool = False) -> str:
        return ("HELLO " if loud else "hello ") + name
""",
        },
        {"name": "Ann", "loud": True},
        "HELLO Ann",
        edit='EXAMPLE = {"name": "Bob"}',
    ),
    Elsewhere(
        "bentoml 1.4 async",
        "service.py",
        {
            "service.py": """import bentoml


@bentoml.service(traffic={"concurrency": 8})
class Counter:
    @bentoml.api(batchable=True, max_batch_size=4, max_latency_ms=500)
    async def count(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
""",
            "sample.json": '"abc"',
        },
        "four",
        4,
    ),
    Elsewhere(
        "triton add_sub",
        "config.pbtxt",
        {
            "config.pbtxt": TRITON.format(
                name="add_sub",
                backend="python",
                size=8,
                out=1,
                count=1,
                more="dynamic_batching { max_queue_delay_microseconds: 500"
                " preferred_batch_size: [ 4, 8 ] }",
            ),
            "1/model.py": EXECUTE.format(expression="x.sum(axis=1, keepdims=True)"),
        },
        {"INPUT0": [1.0, 2.0]},
        {"OUTPUT0": [3.0]},
    ),
    Elsewhere(
        "triton scaled, two instances",
        "config.pbtxt",
        {
            "config.pbtxt": TRITON.format(
                name="scaled",
                backend="python",
                size=16,
                out=2,
                count=2,
                more='parameters { key: "factor" value: { string_value: "2" } }\n'
                "dynamic_batching { }",
            ),
            "1/model.py": EXECUTE.format(expression="x * 2.0"),
        },
        {"INPUT0": [1.0, 2.0]},
        {"OUTPUT0": [2.0, 4.0]},
    ),
    Elsewhere(
        "triton without dynamic batching",
        "config.pbtxt",
        {
            "config.pbtxt": TRITON.format(
                name="plain", backend="python", size=4, out=2, count=1, more=""
            ),
            "1/model.py": EXECUTE.format(expression="-x"),
        },
        {"INPUT0": [1.0, 2.0]},
        {"OUTPUT0": [-1.0, -2.0]},
    ),
    Elsewhere(
        "triton tensorrt plan",
        "config.pbtxt",
        {
            "config.pbtxt": TRITON.format(
                name="plan", backend="tensorrt", size=4, out=2, count=1, more=""
            ),
        },
        refused="Export the model as ONNX or TorchScript",
    ),
    Elsewhere(
        "torchserve mnist",
        "config.properties",
        {
            "config.properties": PROPERTIES.format(
                models='models={"mnist": {"1.0": {"marName": "mnist.mar",\\\n'
                '  "minWorkers": 1, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": 10,\\\n'
                '  "responseTimeout": 120}}}\n'
            ),
            "handler.py": """
class Digits:
    def __init__(self):
        self.initialized = False

    def initialize(self, context):
        self.folder = context.system_properties["model_dir"]
        self.initialized = True

    def handle(self, data, context):
        return [sum(one["body"]["digits"]) % 10 for one in data]
""",
            "sample.json": '{"digits": [1]}',
        },
        {"digits": [7, 8]},
        5,
    ),
    Elsewhere(
        "torchserve with a function",
        "config.properties",
        {
            "config.properties": PROPERTIES.format(models="max_request_size=1000000\n"),
            "service.py": """
def handle(data, context):
    return [len(one["body"]["text"]) for one in data]
""",
        },
        {"text": "four"},
        4,
        edit='EXAMPLE = {"text": "a"}',
    ),
    Elsewhere(
        "kserve sklearn-iris with batcher",
        "service.yaml",
        {
            "service.yaml": KSERVE.format(
                name="sklearn-iris",
                format="sklearn",
                batcher="    batcher: {maxBatchSize: 32, maxLatency: 50}\n",
            ),
            "sample.json": "[1.0, 2.0]",
        },
        [1.0, 2.0],
        4.0,
        models=("model/model.joblib",),
    ),
    Elsewhere(
        "kserve sklearn without batcher",
        "service.yaml",
        {"service.yaml": KSERVE.format(name="prices", format="sklearn", batcher="")},
        [2.0, 2.0],
        6.0,
        edit="EXAMPLE = [1.0, 2.0]",
        models=("model/model.pkl",),
    ),
)
