"""`batchedapi init`: the files of a first project, which serve, pass their test and build."""

import json
import re
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

import click

from batchedapi_serving.cli.documents import TRUSTED, DocumentError, manifest_of, refused

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?")
"""A name that Kubernetes takes for the API and its children."""


class _Kind(NamedTuple):
    """Parts of a project that depend on the kind of model."""

    model: str
    """Text of model.py."""
    row: str
    """A row as JSON, to try."""
    answer: str
    """Its answer, as Python."""
    packages: str = ""
    """Packages that the image needs beside the server."""


_KINDS: Final = {
    "numpy": _Kind(
        """\
import numpy as np

from batchedapi_serving import Tensor, batched


class Model:
    def __init__(self):
        self.weights = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32)  # load yours here

    @batched(inputs=Tensor("FP32", [3]), outputs=Tensor("FP32", [2]))
    def predict(self, x):  # float32 (n, 3), rows of n clients -> float32 (n, 2)
        return x @ self.weights
""",
        row="[1.0, 2.0, 3.0]",
        answer="[4.0, 5.0]",
    ),
    "torch": _Kind(
        """\
import torch

from batchedapi_serving import Tensor, batched


class Model:
    def __init__(self, context):
        self.device = context.device  # cuda:0 where the replica has a GPU
        self.model = torch.nn.Linear(3, 2).to(self.device).eval()  # load yours here
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
            self.model.bias.zero_()

    @batched(inputs=Tensor("FP32", [3]), outputs=Tensor("FP32", [2]))
    def predict(self, x):  # float32 (n, 3), rows of n clients -> float32 (n, 2)
        with torch.inference_mode():
            return self.model(torch.from_numpy(x).to(self.device)).cpu().numpy()
""",
        row="[1.0, 2.0, 3.0]",
        answer="[4.0, 5.0]",
        packages="torch",
    ),
    "scikit-learn": _Kind(
        """\
import numpy as np
from sklearn.linear_model import LinearRegression

from batchedapi_serving import Tensor, batched


class Model:
    def __init__(self):
        x = np.array([[0.0], [1.0], [2.0]])
        self.model = LinearRegression().fit(x, x[:, 0] * 2 + 1)  # joblib.load yours here

    @batched(inputs=Tensor("FP32", [1]), outputs=Tensor("FP64", []))
    def predict(self, x):  # float32 (n, 1), rows of n clients -> float64 (n,)
        return np.round(self.model.predict(x), 6)
""",
        row="[3.0]",
        answer="7.0",
        packages="scikit-learn",
    ),
    "json": _Kind(
        """\
from batchedapi_serving import ItemError, batched


class Model:
    @batched(example={"text": "hello"})
    def predict(self, items):  # a list of JSON values of n clients -> a list of n
        return [self.answer(item) for item in items]

    def answer(self, item):
        if not isinstance(item, dict) or "text" not in item:
            return ItemError(422, 'expected {"text": ...}')  # fails this one, not its neighbours
        return {"words": len(item["text"].split())}
""",
        row='{"text": "two words"}',
        answer='{"words": 2}',
    ),
}
_MANIFEST: Final = Template("""\
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: $name}
spec:
  predictor: {path: "model:Model", image: "$name:1"}
  serverSideBatching: {maxBatchSize: 32}
""")
_MANIFEST_FROM: Final = Template("""\
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: $name}
spec:
  predictor:
    path: "model:Model"
    model: {uri: $uri}
""")
_TEST: Final = Template("""\
from batchedapi_serving import Context
from model import Model


def test_a_row_is_answered_the_same_in_any_company():
    model = Model($arguments)

    alone = model.predict($one)
    together = model.predict($three)

    assert $found_alone == [$answer]
    assert $found_together == [$answer] * 3
""")
_DOCKERFILE: Final = Template("""\
FROM batchedapi-serving:$version
${install}COPY model.py /app/
""")
_INSTALL: Final = Template("""\
USER root
RUN pip install --no-cache-dir $packages
USER 65532
""")


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--template", "kind", type=click.Choice(sorted(_KINDS)), default="numpy", show_default=True,
    help="What the model is made with.",
)  # fmt: skip
@click.option(
    "--from", "model", metavar="MODEL", type=click.Path(path_type=Path),
    help="A saved model that `serve` takes without code: write the class that it would be.",
)  # fmt: skip
@TRUSTED
def init_command(*, folder: Path, kind: str, model: Path | None, trusted: bool) -> None:
    """Write a predictor, its manifest, its test and its Dockerfile into FOLDER.

    The API gets the name of the folder. A file that is there already is left as it is, and nothing
    is written. Of a saved model the class and the manifest are written.

    \b
    Examples:
      batchedapi init prices --template scikit-learn
      batchedapi init prices --from forest.skops
    """
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise click.ClickException(
            f"{folder}: the folder's name is the API's: expected lower-case letters, digits and"
            f" '-', beginning with a letter, 45 at most, got {name!r}"
        )
    with refused(model, 1):
        files = files_of(name, kind) if model is None else _files_from(name, model, trusted=trusted)
    if there := [file for file in files if (folder / file).exists()]:
        raise click.ClickException(
            f"{folder / there[0]}: is there already; name another folder, or remove it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from error
    packages = "" if model else _KINDS[kind].packages
    click.echo(f"{folder}: {', '.join(files)}\n")
    click.echo(f"  cd {folder}")
    if packages:
        click.echo(f"  pip install {packages}")
    click.echo("  batchedapi serve -f batchedapi.yaml --reload")
    if model is not None:
        return
    click.echo(
        f"  curl localhost:8080/{name} -H 'content-type: application/json' -d '{_KINDS[kind].row}'"
    )


def _files_from(name: str, model: Path, *, trusted: bool) -> dict[str, str]:
    """Text of the class that the file would be, and of a manifest that serves it with the file.

    Raises:
        DocumentError: no format is told.
        LoadError: it is not served without code either.
    """
    from batchedapi_serving import formats  # noqa: PLC0415 - every replica runs this program
    from batchedapi_serving.cli.init_from import class_text  # noqa: PLC0415
    from batchedapi_serving.model.loading import declared_methods, method_spec  # noqa: PLC0415

    told = manifest_of(str(model), trusted=trusted).spec.predictor.model
    if told is None or told.served_as is None:
        raise DocumentError("--from: expected the file of a saved model, got a class")
    made = formats.class_of(formats.ModelFile(model.resolve(), told.served_as, trusted))
    methods = [method_spec(made, method) for method in declared_methods(made)]
    manifest = _MANIFEST_FROM.substitute(name=name, uri=json.dumps(told.uri))
    text = class_text(model, told.served_as, [one for one in methods if one is not None])
    return {"model.py": text, "batchedapi.yaml": manifest}


def files_of(name: str, kind: str) -> dict[str, str]:
    """Text of each file of a project by its name."""
    from importlib.metadata import version  # noqa: PLC0415 - every replica runs this program

    chosen = _KINDS[kind]
    tensor = kind != "json"
    text = {
        "arguments": 'Context("test", 0, 1, 1, "cpu")' if kind == "torch" else "",
        "one": f"np.array([{chosen.row}], np.float32)" if tensor else f"[{chosen.row}]",
        "three": f"np.array([{chosen.row}] * 3, np.float32)" if tensor else f"[{chosen.row}] * 3",
        "found_alone": "alone.tolist()" if tensor else "alone",
        "found_together": "together.tolist()" if tensor else "together",
        "answer": chosen.answer,
    }
    test = _TEST.substitute(text)
    if kind != "torch":
        test = test.removeprefix("from batchedapi_serving import Context\n")
    if tensor:
        test = f"import numpy as np\n{test}"
    install = _INSTALL.substitute(packages=chosen.packages) if chosen.packages else ""
    return {
        "model.py": chosen.model,
        "batchedapi.yaml": _MANIFEST.substitute(name=name),
        "test_model.py": test,
        "Dockerfile": _DOCKERFILE.substitute(version=version("batchedapi"), install=install),
    }
