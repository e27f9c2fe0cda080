"""The file that is also given to kubectl: which API, and where its code comes from."""

import base64
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, UnknownFields
from batchedapi_serving.cli.documents import (
    DocumentError,
    Documents,
    given_documents,
    load_api,
    load_documents,
    manifest_of,
)


def api(name: str = "one", **predictor: Any) -> dict[str, Any]:
    """A BatchedAPI."""
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": name},
        "spec": {"predictor": {"path": "model:Model", **predictor}},
    }


def config_map(name: str, **members: Any) -> dict[str, Any]:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **members}


def load(folder: Path, *documents: Any, name: str | None = None) -> Documents:
    """The documents as `serve -f` reads them."""
    file = folder / "api.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return load_documents(file, name, UnknownFields.REFUSE)


def test_a_file_with_one_api_is_that_api(tmp_path: Path) -> None:
    """Its code is looked for in the file's folder."""
    assert (api(), tmp_path) == (api(), load(tmp_path, api()).folder)
    assert load(tmp_path, api()).api.metadata.name == "one"
    assert {} == load(tmp_path, api()).source


def test_other_kinds_and_empty_documents_are_no_obstacle(tmp_path: Path) -> None:
    """A Namespace, a Secret, a trailing `---`."""
    documents = load(tmp_path, None, {"apiVersion": "v1", "kind": "Namespace"}, api(), None)

    assert documents.api.metadata.name == "one"


def test_of_several_apis_one_is_chosen_by_name(tmp_path: Path) -> None:
    """And without a name the choices are listed."""
    assert load(tmp_path, api("one"), api("two"), name="two").api.metadata.name == "two"

    with pytest.raises(DocumentError, match="choose one with --name: one, two"):
        load(tmp_path, api("one"), api("two"))
    with pytest.raises(DocumentError, match="no BatchedAPI named 'three'; the file has one, two"):
        load(tmp_path, api("one"), api("two"), name="three")


def test_a_file_without_an_api_says_what_it_has(tmp_path: Path) -> None:
    """Giving the wrong file is the usual mistake."""
    with pytest.raises(DocumentError, match=r"expected a BatchedAPI document, got ConfigMap$"):
        load(tmp_path, config_map("source"))
    with pytest.raises(DocumentError, match="got nothing"):
        load(tmp_path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """The system's reason: it may be a typing error, and it may be that no file can be opened."""
    for file, reason in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DocumentError, match=f"expected a file to read, got: {reason}"):
            load_documents(file, None, UnknownFields.REFUSE)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"a: b: c"])
def test_what_is_no_yaml_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    """Not a traceback."""
    file = tmp_path / "api.yaml"
    file.write_bytes(content)

    with pytest.raises(DocumentError, match="expected YAML"):
        load_documents(file, None, UnknownFields.REFUSE)


def test_yaml_builds_no_objects(tmp_path: Path) -> None:
    """A manifest from somebody else must not run anything."""
    file = tmp_path / "api.yaml"
    file.write_text("!!python/object/apply:os.abort []")

    with pytest.raises(DocumentError):
        load_documents(file, None, UnknownFields.REFUSE)


def test_code_is_taken_from_the_config_map_beside_the_api(tmp_path: Path) -> None:
    """Text and binary keys; the one of that name."""
    weights = bytes(range(256))
    documents = load(
        tmp_path,
        config_map("other", data={"model.py": "wrong"}),
        config_map(
            "source",
            data={"model.py": "x = 1"},
            binaryData={"weights.bin": base64.b64encode(weights).decode()},
        ),
        api(source={"configMap": "source"}),
    )

    assert {"model.py": b"x = 1", "weights.bin": weights} == documents.source


def test_a_config_map_that_is_not_in_the_file_is_not_replaced_by_what_lies_there(
    tmp_path: Path,
) -> None:
    """The code beside the file may be another than the one in the cluster."""
    (tmp_path / "model.py").write_text("class Model: ...")

    with pytest.raises(DocumentError, match="expected ConfigMap source in this file, got other; "):
        load(tmp_path, config_map("other"), api(source={"configMap": "source"}))


@pytest.mark.parametrize("path", ["model:Model", "model.py:Model", "package.model:Model"])
@pytest.mark.parametrize("data", [{}, {"weights.json": "[]"}])
def test_code_that_a_config_map_lacks_is_not_taken_from_elsewhere_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, data: dict[str, str]
) -> None:
    """A local file of that name is served here, and the image's in a cluster, if it has one."""
    load(tmp_path, config_map("source", data=data), api(path=path, source={"configMap": "source"}))

    (said,) = caplog.messages
    assert said.startswith("spec.predictor.path: ConfigMap source has no ")
    assert "what is here stands for what the image has" in said


@pytest.mark.parametrize("path", ["model:Model", "model.py:Model"])
def test_code_that_a_config_map_has_is_nothing_to_tell_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """As most have."""
    source = config_map("source", data={"model.py": "x = 1"})

    load(tmp_path, source, api(path=path, source={"configMap": "source"}))

    assert [] == caplog.messages


def test_a_manifest_alone_needs_no_code(tmp_path: Path) -> None:
    """`simulate` runs none."""
    (tmp_path / "api.yaml").write_text(yaml.safe_dump(api(source={"configMap": "source"})))

    found = load_api(tmp_path / "api.yaml", None, UnknownFields.REFUSE)

    assert "source" == found.spec.predictor.source.config_map


def test_code_in_the_image_is_not_taken_from_a_config_map(tmp_path: Path) -> None:
    """Only what the source names counts."""
    documents = load(tmp_path, config_map("source", data={"a": "b"}), api())

    assert {} == documents.source


@pytest.mark.parametrize(
    "key", ["../model.py", "/etc/passwd", "a/b", "..", ".", "", "\u00e9.py", "a\n"]
)
def test_a_key_cannot_name_a_file_elsewhere(tmp_path: Path, key: str) -> None:
    """It becomes a file name; Kubernetes refuses such keys, a file on a laptop has no apiserver."""
    with pytest.raises(DocumentError, match="ConfigMap key"):
        load(tmp_path, config_map("source", data={key: "x"}), api(source={"configMap": "source"}))


@pytest.mark.parametrize("text", ["not base64!", "YQ", 3, ["YQ=="]])
def test_binary_data_must_be_base64(tmp_path: Path, text: object) -> None:
    """With the key in the message."""
    with pytest.raises(DocumentError, match=r"binaryData.w.bin: expected base64"):
        load(
            tmp_path,
            config_map("source", binaryData={"w.bin": text}),
            api(source={"configMap": "source"}),
        )


def test_an_empty_config_map_has_no_files(tmp_path: Path) -> None:
    """`data:` without members is null in YAML."""
    documents = load(tmp_path, config_map("source", data=None), api(source={"configMap": "source"}))

    assert {} == documents.source


def test_unknown_fields_are_refused_or_ignored_as_asked(tmp_path: Path) -> None:
    """A laptop refuses; a replica may be older than its operator."""
    file = tmp_path / "api.yaml"
    file.write_text(yaml.safe_dump(api(gpuType="t4")))

    with pytest.raises(ManifestError, match=r"spec.predictor.gpuType: unknown field"):
        load_documents(file, None, UnknownFields.REFUSE)
    loaded = load_documents(file, None, UnknownFields.IGNORE)

    assert loaded.api.spec.predictor.path == "model:Model"


@pytest.mark.parametrize(
    ("predictor", "name"),
    [("model:Iris", "iris"), ("a.b:My_Model", "my-model"), ("m:_", "model")],
)
def test_a_class_without_a_manifest_gets_a_name(predictor: str, name: str) -> None:
    """D06: `serve module:Class`."""
    assert name == manifest_of(predictor).metadata.name


@pytest.mark.parametrize(
    ("file", "name", "format_"),
    [
        ("iris.onnx", "iris", "onnx"),
        ("My Forest_v2.joblib", "my-forest-v2", "sklearn"),
        ("_.keras", "model", "keras"),
        ("320n.onnx", "model-320n", "onnx"),
        (f"{'a' * 44}-b.onnx", "a" * 44, "onnx"),
        ("bert/config.json", "bert", "huggingface"),
        ("sentences/modules.json", "sentences", "huggingface"),
    ],
)
def test_a_file_is_an_api_of_its_name(tmp_path: Path, file: str, name: str, format_: str) -> None:
    """`serve FILE`: nothing but the file is needed."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if format_ == "huggingface":
        path = path.parent

    api = manifest_of(str(path), trusted=True)

    model = api.spec.predictor.model
    assert name == api.metadata.name
    assert model is not None
    assert (path.as_uri(), format_, True) == (model.uri, model.format, model.trusted)
    assert api.spec.predictor.path is None


def test_a_file_above_is_named_by_its_real_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`..` in an address is refused; on a command line it is how one names a file beside."""
    (tmp_path / "below").mkdir()
    (tmp_path / "iris.onnx").touch()
    monkeypatch.chdir(tmp_path / "below")

    model = manifest_of("../iris.onnx").spec.predictor.model

    assert model is not None
    assert (tmp_path / "iris.onnx").as_uri() == model.uri


@pytest.mark.parametrize(
    ("name", "there", "message"),
    [
        ("iris.onnx", None, "expected a file iris.onnx, found none"),
        ("iris.dat", "", "expected a file whose name ends with .onnx, .*rename it"),
        ("iris.dat", None, "expected module:Class"),
    ],
)
def test_a_name_that_tells_no_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: str | None, message: str
) -> None:
    """What is in a file is not guessed from its bytes."""
    monkeypatch.chdir(tmp_path)
    if there is not None:
        Path(name).write_text(there)

    with pytest.raises(DocumentError, match=message):
        manifest_of(name)


def test_trust_in_a_manifest_is_said_there(tmp_path: Path) -> None:
    """An option that did nothing, or beat one file of a team's, would be worse."""
    with pytest.raises(click.UsageError, match="the manifest says it"):
        given_documents(None, tmp_path / "api.yaml", None, trusted=True)


def test_trust_in_a_class_is_refused() -> None:
    """Its code runs anyway."""
    with pytest.raises(DocumentError, match="--trusted is for a file MODEL"):
        manifest_of("model:Iris", trusted=True)


@pytest.mark.parametrize("predictor", ["model:", ":Class", "a b:C"])
def test_what_is_no_class_path_is_refused(predictor: str) -> None:
    """With the field's name, as in a manifest."""
    with pytest.raises(ManifestError, match=r"spec\.predictor\.path"):
        manifest_of(predictor)


@pytest.mark.parametrize("predictor", ["", "model", "model.Class", "model.py"])
def test_a_module_without_a_class_is_told_the_form(predictor: str) -> None:
    """The likeliest slip of who tries it out; a pattern would not help."""
    with pytest.raises(DocumentError, match="expected module:Class"):
        manifest_of(predictor)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (["odd"], "document 2: expected a BatchedAPI document, got a list"),
        ("odd", "document 2: expected a BatchedAPI document, got a text"),
        (2.5, "document 2: expected a BatchedAPI document, got a value"),
        ({"kind": "Namespace"}, "got one without apiVersion; it begins with apiVersion: "),
        ({"metadata": {}}, "got one without apiVersion and kind"),
        ([{"kind": "RealtimeAPI", "name": "a"}], "batchedapi migrate FILE"),
    ],
    ids=str,
)
def test_what_is_no_object_is_refused_wherever_it_stands(
    tmp_path: Path, document: object, message: str
) -> None:
    """As kubectl does: a file is applied as a whole."""
    with pytest.raises(DocumentError, match=message):
        load(tmp_path, api(), document)


def test_the_members_of_a_list_are_documents(tmp_path: Path) -> None:
    """`kubectl get -o yaml` writes such a file."""
    documents = load(
        tmp_path,
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                config_map("source", data={"a.py": "b"}),
                api(source={"configMap": "source"}),
            ],
        },
    )

    assert {"a.py": b"b"} == documents.source
    with pytest.raises(DocumentError, match="got nothing"):
        load(tmp_path, {"apiVersion": "v1", "kind": "List", "items": None})


def test_lists_without_end_are_no_manifest(tmp_path: Path) -> None:
    """Not a traceback."""
    file = tmp_path / "api.yaml"
    file.write_text("a: " + "[" * 5000)

    with pytest.raises(DocumentError, match="lists in lists without end"):
        load_documents(file, None, UnknownFields.REFUSE)


def test_a_slice_is_read_as_the_operator_wrote_it(tmp_path: Path) -> None:
    """`y` is a text to the writer of slices, which leaves it without quotes; nulls stay."""
    config = {"answer": "y", "size": "1e3", "nothing": None, "share": 1.0}
    file = tmp_path / "api.yaml"
    file.write_text(yaml.safe_dump(api(config=config)))

    loaded = load_documents(file, None, UnknownFields.IGNORE).api.spec.predictor.config

    assert config == loaded
    assert isinstance(loaded["share"], float)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"data": {"a.py": 1}}, "ConfigMap data.a.py: expected text, got 1"),
        ({"dada": {}}, "ConfigMap dada: unknown field; expected apiVersion, binaryData, data"),
    ],
)
def test_a_config_map_is_judged_like_the_api_beside_it(
    tmp_path: Path, members: dict[str, Any], message: str
) -> None:
    """The cluster would refuse it, and the predictor have no code."""
    with pytest.raises(DocumentError, match=message):
        load(tmp_path, config_map("source", **members), api(source={"configMap": "source"}))
