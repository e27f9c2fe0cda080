"""Models that were not made for this, served as they are: which are answered rightly, and when.

    python tests/bench/files.py
    python tests/bench/files.py --speed       # requests/s beside a class, and beside MLServer

Needs `pip install -c constraints.txt '.[dev,huggingface,keras]'` and `pip install magika nudenet
rapidocr-onnxruntime skl2onnx onnxscript`. Each file is served by `batchedapi serve`, asked for two
rows at once, and compared with its own library. Then come tests of onnx's own operators, of which
most have no dimension of rows, and files that are to be refused.

`--speed` needs wrk, and `python -m venv .venv/mlserver` with `pip install mlserver==1.7.1
mlserver-sklearn==1.7.1 onnxruntime 'uvloop<0.22'` in it. Models like W1 and W3 are asked by the
same bodies of the Open Inference Protocol: the file as it is, the file in a class as people write
it, and MLServer with adaptive batching of the same size and wait.
"""

import contextlib
import dataclasses
import itertools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import joblib
import lightgbm
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import saved_models
import skops.io
import workloads
import xgboost
import yaml
from harness import servers, wrk
from harness.report import Table, environment, help_of, out_option, report
from harness.rounds import Spread, ratio
from onnx.backend.test.case.node import collect_testcases
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from batchedapi_core import contract

_LIMIT_SECONDS: Final = 60.0
_TOLERANCE: Final = 1e-4
_CONNECTIONS: Final = (1, 16, 64)
_SECONDS: Final = 2
_COLUMNS: Final = ("the file", "a class", "MLServer")
_NODE_TESTS: Final = 20
_MLSERVER: Final = servers.BENCH.parents[1] / ".venv/mlserver/bin/mlserver"
_INFER: Final = "/v2/models/model/infer"
_CLASSES: Final = {"sklearn": "OfSklearn", "onnx": "OfOnnx"}
_RUNTIMES: Final = {"sklearn": "mlserver_sklearn.SKLearnModel", "onnx": "mlserver_app.OnnxModel"}
_RAN: Final = "ran"
_GROUPS: Final = {"node test of onnx": "node tests", "wrong file": "wrong files"}
"""Kinds that are counted apart from models."""
_LENGTH: Final = 64
"""Of a dimension that differs from row to row."""
_BUILT: Final = np.random.default_rng(7)
X, KINDS = load_iris(return_X_y=True)
X = X.astype(np.float32)
FRAME: Final = pd.DataFrame({"age": [1, 2, 3, 4], "city": ["Ulm", "Bonn"] * 2})


class Case(NamedTuple):
    """One file."""

    kind: str
    path: Path
    rows: list[Any]
    expected: list[Any]
    options: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """Of a manifest; None: the file alone."""


class Outcome(NamedTuple):
    """What came of a file."""

    words: str
    """`right`, `refused`, or what is wrong."""
    seconds: float
    reason: str = ""


def of_onnx(kind: str, path: Path) -> Case:
    """Two rows of an ONNX file, of what its inputs take, and onnxruntime's answers."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {}
    for one in session.get_inputs():
        shape = [2, *(n if isinstance(n, int) else _LENGTH for n in one.shape[1:])]
        drawn = _BUILT.integers(0, 5, shape) if "int" in one.type else _BUILT.random(shape)
        given[one.name] = drawn.astype(one.type[7:-1].replace("float", "float32"))
    try:
        found = dict(
            zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True)
        )
    except Exception:  # noqa: BLE001 - a graph that takes no two rows is to be refused
        return Case(kind, path, [0], [])
    return Case(kind, path, _rows(given), _rows(found))


def _rows(columns: Mapping[str, Any]) -> list[Any]:
    rows = [
        {
            name: column[i].tolist() if isinstance(column, np.ndarray) else column[i]
            for name, column in columns.items()
        }
        for i in range(2)
    ]
    return rows if len(columns) > 1 else [next(iter(row.values())) for row in rows]


def shipped() -> Iterator[Case]:
    """ONNX files with a dimension of rows in packages of PyPI."""
    for package, pattern in (
        ("magika", "**/model.onnx"), ("nudenet", "*.onnx"), ("rapidocr_onnxruntime", "**/*.onnx"),
    ):  # fmt: skip
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise click.ClickException(f"{package} is not installed; see --help")
        for path in sorted(Path(spec.origin).parent.glob(pattern)):
            yield of_onnx(f"onnx of {package}", path)


def _modules() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    import torch  # noqa: PLC0415 - see --help

    nn = torch.nn
    torch.manual_seed(0)
    scores = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)]
    yield nn.Sequential(*scores), (torch.zeros(2, 4),)
    picture = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    yield nn.Sequential(*picture), (torch.zeros(2, 1, 8, 8),)
    yield nn.Sequential(nn.Conv1d(4, 8, 3), nn.AdaptiveAvgPool1d(1)), (torch.zeros(2, 4, 9),)
    yield nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU()), (torch.zeros(2, 5, 4),)
    yield nn.Embedding(10, 4), (torch.zeros(2, 3, dtype=torch.long),)
    yield nn.CosineSimilarity(), (torch.zeros(2, 4), torch.zeros(2, 4))


def torch_exports(folder: Path) -> Iterator[Case]:
    """The same modules as ONNX; three of them as TorchScript."""
    import torch  # noqa: PLC0415 - see --help

    for i, (module, given) in enumerate(_modules()):
        path = folder / f"torch-{i}.onnx"
        names = [f"in{j}" for j in range(len(given))]
        dims = {name: {0: "batch"} for name in names}
        torch.onnx.export(
            module.eval(), given, path, input_names=names, dynamic_axes=dims, dynamo=False
        )
        yield of_onnx("onnx of torch", path)
    for i, (module, given) in enumerate(itertools.islice(_modules(), 3)):
        path = folder / f"script-{i}.pt"
        torch.jit.trace(module.eval(), given).save(path)
        (x,) = (torch.from_numpy(_BUILT.random(one.shape, np.float32)) for one in given)
        row = {"datatype": "FP32", "shape": list(x.shape[1:])}
        name = torch.jit.load(path).forward.schema.arguments[1].name
        answer = module(x).detach().tolist()
        yield Case("torchscript", path, x.tolist(), answer, config={"inputs": {name: row}})


def sklearn_exports(folder: Path) -> Iterator[Case]:
    """Nine that skl2onnx has exported, with maps of probabilities as it likes them and without."""
    from skl2onnx import to_onnx  # noqa: PLC0415 - see --help

    scaled = make_pipeline(StandardScaler(), LogisticRegression())
    for i, (model, maps) in enumerate((
        (LogisticRegression(max_iter=500), True), (LogisticRegression(max_iter=500), False),
        (RandomForestClassifier(10), False), (GradientBoostingClassifier(n_estimators=5), False),
        (SVC(probability=False), False), (scaled, True), (LinearRegression(), False),
        (StandardScaler(), False), (MLPClassifier(max_iter=50), False),
    )):  # fmt: skip
        path = folder / f"sklearn-{i}.onnx"
        options = {} if maps or not hasattr(model, "predict_proba") else {"zipmap": False}
        exported = to_onnx(
            model.fit(X, KINDS), X[:1], options={id(model): options} if options else None
        )
        path.write_bytes(exported.SerializeToString())
        yield of_onnx("onnx of scikit-learn", path)


def estimators(folder: Path) -> Iterator[Case]:
    """Six of scikit-learn, two of XGBoost, one of LightGBM."""
    labels = np.array(["setosa", "versicolor", "virginica"])[KINDS]
    encoded = ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="passthrough")
    frame = make_pipeline(encoded, LinearRegression()).fit(FRAME, [1, 2, 3, 4])
    texts = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good", "bad"], [1, 0])
    rows = [X[0].tolist(), X[-1].tolist()]
    for name, model, given, asked in (
        ("forest.joblib", RandomForestClassifier(20).fit(X, KINDS), rows, rows),
        ("scaled.skops", make_pipeline(StandardScaler(), SVC()).fit(X, KINDS), rows, rows),
        ("labels.joblib", LogisticRegression(max_iter=500).fit(X, labels), rows, rows),
        ("price.pkl", LinearRegression().fit(X, X[:, :2]), rows, rows),
        ("frame.joblib", frame, FRAME[:2], FRAME[:2].to_dict("records")),
        ("texts.joblib", texts, ["good", "bad"], ["good", "bad"]),
    ):
        path, options = folder / name, () if name.endswith("skops") else ("--trusted",)
        (joblib if options else skops.io).dump(model, path)
        yield Case("scikit-learn", path, asked, model.predict(given).tolist(), options)
    classifier = xgboost.XGBClassifier(n_estimators=5).fit(X, KINDS)
    regressor = xgboost.XGBRegressor(n_estimators=5).fit(X, KINDS)
    for name, booster in (("kinds.json", classifier), ("score.ubj", regressor)):
        booster.save_model(folder / name)
        yield Case("xgboost", folder / name, rows, booster.predict(rows).tolist())
    data = lightgbm.Dataset(X, KINDS)
    gbm = lightgbm.train({"objective": "regression", "verbose": -1}, data, 5)
    gbm.save_model(folder / "score.txt")
    yield Case("lightgbm", folder / "score.txt", rows, np.asarray(gbm.predict(rows)).tolist())


def folders(folder: Path) -> Iterator[Case]:
    """Four of Hugging Face, made small."""
    import transformers  # noqa: PLC0415 - see --help

    from huggingface_models import small_model  # noqa: PLC0415 - it needs torch

    rows = ["good day", "bad"]
    for kind, task in (
        (transformers.BertForSequenceClassification, "text-classification"),
        (transformers.BertForTokenClassification, "token-classification"),
        (transformers.BertModel, "feature-extraction"),
    ):
        path = small_model(folder / task, kind)
        found = transformers.pipeline(task, model=str(path))(rows)
        if task == "feature-extraction":
            found = [one[0] for one in found]
        yield Case("huggingface", path, rows, json.loads(json.dumps(found, default=float)))
    speech = small_model(folder / "speech", transformers.Wav2Vec2ForCTC)
    samples = [[0.0, 0.5] * 400, [0.25] * 800]
    pipeline = transformers.pipeline("automatic-speech-recognition", model=str(speech))
    expected = [pipeline(np.array(one, np.float32)) for one in samples]
    yield Case("huggingface", speech, samples, expected)


def node_tests(folder: Path) -> Iterator[Case]:
    """Of onnx's own tests of operators, evenly chosen of those whose opsets onnxruntime has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
        known = [(one.name, one.model) for one in cases if one.model is not None]
    for name, model in known[:: len(known) // _NODE_TESTS][:_NODE_TESTS]:
        path = folder / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        yield Case("node test of onnx", path, [0], [])


class _Runs:
    """A pickle of it runs a command as it is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def wrong_files(folder: Path) -> Iterator[Case]:
    """Cut, of another format, of zeros, a pickle that runs, without rows, of an opset too new."""
    good = onnx.load(saved_models.save("W1", "onnx", folder))
    for name, content in (
        ("half.onnx", good.SerializeToString()[:150]),
        ("picture.onnx", b"\x89PNG\r\n\x1a\n" * 100),
        ("half.skops", (folder / "scaled.skops").read_bytes()[:1000]),
        ("another.ubj", good.SerializeToString()),
    ):
        (folder / name).write_bytes(content)
    with (folder / "zeros.onnx").open("wb") as zeros:
        zeros.truncate(1 << 30)
    joblib.dump(_Runs(folder / _RAN), folder / "runs.joblib")
    good.opset_import[0].version = 99
    onnx.save(good, folder / "new.onnx")
    good.opset_import[0].version = 17
    good.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(good, folder / "one.onnx")
    for name in ("half.onnx", "picture.onnx", "half.skops", "another.ubj", "zeros.onnx",
                 "runs.joblib", "new.onnx", "one.onnx"):  # fmt: skip
        yield Case("wrong file", folder / name, [0], [])
    yield Case("wrong file", folder / ".." / folder.name / "one.onnx", [0], [], config={})


def outcome(case: Case, port: int) -> Outcome:
    """Serve the file, ask for both rows, compare."""
    began = time.perf_counter()
    arguments = [str(case.path), *case.options]
    with tempfile.TemporaryDirectory(prefix="bench-files-") as folder:
        if case.config is not None:
            file = Path(folder) / "api.yaml"
            file.write_text(yaml.safe_dump(_manifest(case)))
            arguments = ["-f", str(file)]
        command = [
            servers.PROGRAM, "serve", *arguments, "--host", servers.HOST,
            "--port", str(port), "--admin-port", str(port + 1),
        ]  # fmt: skip
        with servers.running(command, {"HF_HUB_OFFLINE": "1"}) as (process, log):
            while not servers.is_ready(port + 1):
                late = time.perf_counter() - began > _LIMIT_SECONDS
                if late or process.poll() is not None:
                    line = log.read_text(errors="replace").strip().splitlines()[-1]
                    said = line.partition("spec.predictor.model")[2].strip()
                    word = "refused" if said else "failed"
                    return Outcome(word, time.perf_counter() - began, said)
                time.sleep(0.02)
            body = json.dumps({"instances": case.rows}).encode()
            status, answer = servers.ask(port, contract.PATH_PREDICT, body)
    seconds = time.perf_counter() - began
    found = json.loads(answer).get("predictions")
    right = status == 200 and _alike(found, case.expected)
    return Outcome("right" if right else "WRONG", seconds, "" if right else answer[:200].decode())


def _manifest(case: Case) -> dict[str, Any]:
    model = {"uri": f"file://{case.path}", "trusted": True}
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "file"},
        "spec": {"predictor": {"model": model, "config": case.config}},
    }


def _alike(found: Any, expected: Any) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            _alike(found.get(str(name)), value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(_alike, found, expected))
        )
    if isinstance(expected, float):
        return isinstance(found, int | float) and bool(
            np.isclose(found, expected, _TOLERANCE, _TOLERANCE)
        )
    return bool(found == expected)


def _ours(predictor: Mapping[str, Any]) -> Mapping[str, Any]:
    made = servers.manifest("model")
    one_thread = {**predictor, "cpuThreads": 1}  # as the class and MLServer have it
    return made | {"spec": made["spec"] | {"predictor": one_thread}}


@contextlib.contextmanager
def _mlserver(file: Path, format_: str, port: int, body: bytes) -> Iterator[servers.Server]:
    settings = {
        "name": "model", "implementation": _RUNTIMES[format_], "parameters": {"uri": str(file)},
        "max_batch_size": workloads.MAX_BATCH,
        "max_batch_time": workloads.BATCH_INTERVAL_MS / 1000,
    }  # fmt: skip
    (file.parent / "model-settings.json").write_text(json.dumps(settings))
    ports = {"HTTP": port, "GRPC": port + 1, "METRICS": port + 2}
    variables = {f"MLSERVER_{name}_PORT": str(number) for name, number in ports.items()}
    variables |= {"MLSERVER_DEBUG": "false", "PYTHONPATH": str(servers.BENCH)}
    variables["MLSERVER_METRICS_DIR"] = str(file.parent)
    with servers.running([str(_MLSERVER), "start", str(file.parent)], variables) as (process, log):
        servers.wait_until(lambda: servers.status_of(port, _INFER, body) == 200, process, log)
        yield servers.Server("MLServer", process.pid, port, _INFER, 0, process)


def speeds(workload: str, format_: str, port: int, rounds: int) -> Iterator[list[str]]:
    """A row of the table for each number of connections, of one model."""
    name, number = {"sklearn": ("input", "FP64"), "onnx": ("x", "FP32")}[format_]
    row = saved_models.X[0]
    tensor = {"name": name, "shape": [1, len(row)], "datatype": number, "data": row.tolist()}
    body = json.dumps({"id": "a", "inputs": [tensor]}).encode()
    with (
        tempfile.TemporaryDirectory(prefix="bench-files-") as name,
        contextlib.ExitStack() as stack,
    ):
        file = saved_models.save(workload, format_, Path(name))
        path = f"saved_models:{_CLASSES[format_]}"
        asked = [stack.enter_context(_mlserver(file, format_, port + 20, body))]
        predictors: list[dict[str, Any]] = [
            {"model": {"uri": file.as_uri(), "trusted": True}},
            {"path": path, "config": {"file": str(file)}},
        ]
        for i, predictor in enumerate(predictors):
            manifest = stack.enter_context(servers.manifest_file(_ours(predictor)))
            server = stack.enter_context(servers.serving(manifest, port + 4 * i))
            asked.insert(i, dataclasses.replace(server, path=_INFER))
        answers = [json.loads(servers.ask(one.port, _INFER, body)[1]) for one in asked]
        found = [np.ravel(one["outputs"][0]["data"])[0] for one in answers]
        if not np.allclose(found, found[0], _TOLERANCE):
            raise click.ClickException(f"{workload}, {format_}: expected one answer, got {found}")
        for connections in _CONNECTIONS:
            rates: list[list[float]] = [[] for _ in asked]
            for _ in range(rounds):
                for server, of in zip(asked, rates, strict=True):
                    of.append(wrk.timed(server, body, connections, _SECONDS).rate)
            click.echo(f"{workload} {format_} c={connections} {rates}", err=True)
            ratios = [ratio(rates[0], of).text(2) for of in rates[1:]]
            spreads = [Spread.of(of).text() for of in rates]
            yield [workload, format_, str(connections), *ratios, *spreads]


@click.command(help=help_of(__doc__))
@click.option("--speed", is_flag=True, help="Requests/s instead.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--port", default=servers.PORT + 700, show_default=True, help="First of two.")
@out_option
def main(*, speed: bool, rounds: int, port: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    warnings.simplefilter("ignore")
    if speed:
        wrk.require_wrk()
        models = itertools.product(("W1", "W3"), _CLASSES)
        lines = [line for one in models for line in speeds(*one, port, rounds)]
        head = ["model", "format", "clients", "file / class", "file / MLServer", *_COLUMNS]
        note = f"{rounds} interleaved rounds of {_SECONDS} s a cell; requests/s."
        report("files-speed", began, [Table("files beside a class and MLServer", head, lines)],
               notes=[note], measured={"rows": lines}, out=out)  # fmt: skip
        return
    rows, found = [], []
    with tempfile.TemporaryDirectory(prefix="bench-files-") as name:
        folder = Path(name)
        for case in itertools.chain(
            shipped(), torch_exports(folder), sklearn_exports(folder), estimators(folder),
            folders(folder), node_tests(folder), wrong_files(folder),
        ):  # fmt: skip
            got = outcome(case, port)
            click.echo(f"{case.kind}  {case.path.name}  {got.words}  {got.seconds:.1f} s", err=True)
            rows.append([case.kind, case.path.name, got.words, f"{got.seconds:.1f}", got.reason])
            found.append({"kind": case.kind, "file": case.path.name, **got._asdict()})
        if (folder / _RAN).exists():
            raise click.ClickException("a pickle ran")
    notes = []
    for what in ("models", *_GROUPS.values()):
        of = [one for one in found if _GROUPS.get(str(one["kind"]), "models") == what]
        right = sum(one["words"] == "right" for one in of)
        refused = sum(one["words"] == "refused" for one in of)
        slowest = max(float(str(one["seconds"])) for one in of)
        notes.append(
            f"Of {len(of)} {what} {right} are answered rightly, {refused} refused with the reason;"
            f" the slowest took {slowest:.1f} s from the command to the answer."
        )
    head = ["kind", "file", "outcome", "seconds", "reason"]
    report(
        "files",
        began,
        [Table("files", head, rows)],
        notes=notes,
        measured={"files": found},
        out=out,
    )
    if any(one["words"] not in {"right", "refused"} for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
