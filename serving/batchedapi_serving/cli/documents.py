"""Reads the file that is also given to kubectl: BatchedAPIs and the ConfigMaps beside them.

YAML is read as kubectl reads and sends it, which is not quite as Python's reader does: `y`, `On`
and `no` are booleans, dates and `1:30` are texts, `1e3` is a number, and keys are texts. What is
null is not sent; a number without a fraction is sent as an integer.
"""

import base64
import binascii
import contextlib
import json
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ManifestError, UnknownFields, parse_api
from batchedapi_core.manifest.spec import MAX_NAME_LENGTH
from batchedapi_core.model_format import SUFFIXES, ModelFormat, format_of_name
from batchedapi_serving.errors import LoadError

_STR: Final = "tag:yaml.org,2002:str"
_TRUE: Final = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE: Final = frozenset(
    ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
)
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|0[oO]?(?P<octal>[0-7]+)"
    r"|(?P<decimal>0|[1-9][0-9]*))"
)
_BASES: Final = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INT64: Final = range(-(2**63), 2**63)
_LARGEST_SENT_WHOLE: Final = 1e21  # Go writes larger ones with an exponent


def read_documents(text: str) -> list[Any]:
    """Every document of a file as kubectl would send it; those that are empty are left out.

    Raises:
        yaml.YAMLError: it is no YAML, or what JSON has no words for.
        RecursionError: it is nested too deeply.
    """
    if text.lstrip().startswith("{"):
        try:
            return [_sent(json.loads(text))]
        except ValueError:
            pass  # YAML has braces too
    loaded = yaml.load_all(text, _DocumentLoader)
    return [_sent(document) for document in loaded if document is not None]


def _sent(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sent(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_sent(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_SENT_WHOLE:
        value = int(value)
    if type(value) is int and value not in _INT64:
        return float(value)
    return value


class _DocumentLoader(yaml.SafeLoader):
    """With rules of its own for what is written without quotes, and for keys."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - the name is PyYAML's

    def texts_as_keys(self, node: yaml.Node) -> dict[str, Any]:
        """A mapping as JSON has it."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(
                None, None, "expected a mapping", node.start_mark
            )
        self.flatten_mapping(node)
        found = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            text = key if isinstance(key, str) else json.dumps(key)
            found[text] = self.construct_object(value_node, deep=True)
        return found


def _scalar(loader: _DocumentLoader, node: yaml.ScalarNode) -> Any:
    """A scalar without quotes and tag."""
    text = str(loader.construct_scalar(node))
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _NOT_FINITE.fullmatch(text):
        raise yaml.constructor.ConstructorError(
            None, None, f"expected a number that JSON has, got {text}", node.start_mark
        )
    if text[0] in "+-.0123456789":
        digits = text.replace("_", "")
        if found := _INTEGER.fullmatch(digits):
            (base,) = (name for name in _BASES if found[name] is not None)
            return int(found["sign"] + found[base], _BASES[base])
        if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
            return float(digits)
    return text


def _text(loader: _DocumentLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _decoded(loader: _DocumentLoader, node: yaml.ScalarNode) -> str:
    return base64.b64decode(_text(loader, node)).decode("utf-8", "replace")


def _sequence(loader: _DocumentLoader, node: yaml.SequenceNode) -> Any:
    return loader.construct_sequence(node, deep=True)


def _untagged(loader: _DocumentLoader, node: yaml.Node) -> Any:
    """A tag that nobody knows says nothing."""
    if isinstance(node, yaml.MappingNode):
        return loader.texts_as_keys(node)
    if isinstance(node, yaml.SequenceNode):
        return _sequence(loader, node)
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - there are three kinds of nodes
    return _text(loader, node)


_PLAIN: Final = "!plain"
_DocumentLoader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])
_DocumentLoader.add_implicit_resolver(_PLAIN, re.compile(""), None)
for _tag in (_PLAIN, *(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))):
    _DocumentLoader.add_constructor(_tag, _scalar)
for _tag in ("str", "timestamp"):
    _DocumentLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)
_DocumentLoader.add_constructor("tag:yaml.org,2002:binary", _decoded)
_DocumentLoader.add_constructor("tag:yaml.org,2002:map", _DocumentLoader.texts_as_keys)
_DocumentLoader.add_constructor("tag:yaml.org,2002:set", _DocumentLoader.texts_as_keys)
_DocumentLoader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_DocumentLoader.add_constructor(None, _untagged)


log = logging.getLogger(__name__)

MANIFEST_PATH: Final = click.Path(readable=False, path_type=Path)
"""Asks the system nothing: `load_documents` reads the file, and says what hinders it."""


class DocumentError(ValueError):
    """A file that is not what `serve -f` takes."""


@contextlib.contextmanager
def refused(place: object, code: int, *errors: type[Exception]) -> Iterator[None]:
    """Print the problems of a command, one a line, and exit with `code`.

    Args:
        place: The manifest or class, which problems of a document begin with.
        errors: Others than those of documents, the predictor and the system.
    """
    others: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except ManifestError as error:
        problems = [f"{place}: {problem}" for problem in error.problems]
    except DocumentError as error:
        problems = [f"{place}: {error}"]
    except LoadError as error:
        problems = [f"{error.reason}: {error}"]
    except others as error:
        problems = [str(error)]
    else:
        return
    for problem in problems:
        click.echo(f"batchedapi: {problem}", err=True)
    sys.exit(code)


class Documents(NamedTuple):
    """One API and where its code comes from."""

    api: BatchedAPI
    source: Mapping[str, bytes]
    """Files of the ConfigMap in the same file; empty: the code is in `folder`, or importable."""
    folder: Path


PREDICTOR_METAVAR: Final = "[MODULE:CLASS|MODEL]"
TRUSTED: Final = click.option(
    "--trusted", is_flag=True,
    help="Code that the file MODEL brings may run, as spec.predictor.model.trusted says it.",
)  # fmt: skip


def given_documents(
    predictor: str | None,
    file: Path | None,
    name: str | None,
    *,
    trusted: bool,
    unknown: UnknownFields = UnknownFields.REFUSE,
) -> "Documents":
    """The API of a command line: of a manifest, a class, or a model that is served as it is.

    Raises:
        click.UsageError: none of them, several, or trust in none.
        DocumentError: see load_documents and manifest_of.
        ManifestError: the manifest is not valid.
    """
    if (predictor is None) == (file is None):
        raise click.UsageError("give either -f FILE, MODULE:CLASS or MODEL")
    if file is not None:
        if trusted:
            raise click.UsageError("--trusted: the manifest says it, in spec.predictor.model")
        return load_documents(file, name, unknown)
    return Documents(manifest_of(predictor or "", trusted=trusted), {}, Path.cwd())


def manifest_of(predictor: str, *, trusted: bool = False) -> BatchedAPI:
    """The manifest of a class, or of a model's file, that is served without one.

    Its name is that of the class or the file.

    Raises:
        DocumentError: `predictor` is neither `module:Class` nor a file whose name tells its format.
        ManifestError: nor can it be.
    """
    _, colon, name = predictor.rpartition(":")
    told: dict[str, Any] = {"path": predictor}
    if not colon or Path(predictor).exists():
        told = {"model": _model_of(predictor) | ({"trusted": True} if trusted else {})}
        name = Path(predictor).resolve().stem
    elif trusted:
        raise DocumentError("--trusted is for a file MODEL; a class is code, which runs anyway")
    name = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"model-{name}".strip("-")
    return parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {"name": name[:MAX_NAME_LENGTH].strip("-")},
            "spec": {"predictor": told},
        }
    )


def _model_of(name: str) -> dict[str, Any]:
    """`spec.predictor.model` for a file or folder on this machine."""
    path, format_ = Path(name), format_of_name(name)
    if any((path / file).exists() for file in _OF_HUGGINGFACE):
        format_ = ModelFormat.HUGGINGFACE
    if not name or not path.exists():
        there = f"a file {path}, found none" if format_ else _NEITHER
        raise DocumentError(f"expected {there}")
    if format_ is None:
        ends = ", ".join(f".{end}" for end in SUFFIXES)
        raise DocumentError(
            f"expected a file whose name ends with {ends}, or a folder with"
            f" {' or '.join(_OF_HUGGINGFACE)};"
            " rename it, or write a manifest with spec.predictor.model.format"
        )
    return {"uri": path.resolve().as_uri(), "format": format_.value}


_OF_HUGGINGFACE: Final = ("config.json", "modules.json")
"""In a folder of transformers; in one of sentence-transformers, which may have both."""
_NEITHER: Final = (
    "module:Class (model:Model is class Model of model.py), a model's file (iris.onnx), or -f and"
    " a manifest"
)


def load_documents(file: Path, name: str | None, unknown: UnknownFields) -> Documents:
    """The API to serve out of `file`.

    Args:
        file: YAML or JSON, one or several documents.
        name: Which BatchedAPI, if there are several.
        unknown: REFUSE for what somebody wrote, who is told what kubectl would tell; IGNORE for the
            slice that an operator wrote.

    Raises:
        DocumentError: not readable, not YAML, not exactly one BatchedAPI to choose, or without the
            ConfigMap that it names.
        ManifestError: the BatchedAPI is not valid.
    """
    api, documents = _loaded(file, name, unknown)
    folder = file.resolve().parent
    source, path = api.spec.predictor.source, api.spec.predictor.path
    if source is None or source.config_map is None or path is None:
        return Documents(api, {}, folder)
    config_map = next(
        (one for one in _of_kind(documents, "ConfigMap") if _name_of(one) == source.config_map),
        None,
    )
    if config_map is None:
        raise DocumentError(
            f"spec.predictor.source.configMap: expected ConfigMap {source.config_map} in this file,"
            f" got {_list([_name_of(one) for one in _of_kind(documents, 'ConfigMap')])}; add it"
            f" (kubectl create configmap {source.config_map} --from-file=... --dry-run=client -o"
            " yaml), or leave out source to serve the code beside the file"
        )
    files = _files_of(config_map)
    module = path.partition(":")[0]
    code = module if module.endswith(".py") else f"{module.partition('.')[0]}.py"
    if code not in files:  # it may have weights alone, and the image the code: nobody is to guess
        log.warning(
            "spec.predictor.path: ConfigMap %s has no %s; what is here stands for what the image"
            " has, and where the image has none add the file to the ConfigMap",
            source.config_map,
            code,
        )
    return Documents(api, files, folder)


def load_api(file: Path, name: str | None, unknown: UnknownFields) -> BatchedAPI:
    """The manifest alone, wherever its code is; arguments and errors as of `load_documents`."""
    return _loaded(file, name, unknown)[0]


def _loaded(file: Path, name: str | None, unknown: UnknownFields) -> tuple[BatchedAPI, list[Any]]:
    documents = _objects(file, unknown)
    apis = _of_kind(documents, contract.KIND)
    names = [_name_of(api) for api in apis]
    if name is not None and name not in names:
        raise DocumentError(f"no {contract.KIND} named {name!r}; the file has {_list(names)}")
    if name is None and not apis:
        kinds = [str(d.get("kind")) if isinstance(d, dict) else type(d).__name__ for d in documents]
        raise DocumentError(f"expected a {contract.KIND} document, got {_list(kinds)}")
    if name is None and len(apis) > 1:
        raise DocumentError(f"several {contract.KIND}s: choose one with --name: {_list(names)}")
    chosen = apis[0 if name is None else names.index(name)]
    return parse_api(chosen, unknown, lambda text: log.warning("%s", text)), documents


def _objects(file: Path, unknown: UnknownFields) -> list[Any]:
    """Kubernetes objects, those of a List one by one.

    Raises:
        DocumentError: it cannot be read, or there is something else among them.
    """
    documents = _read(file, unknown)
    found: list[Any] = []
    for number, document in enumerate(documents, 1):
        is_object = (
            isinstance(document, dict) and document.get("kind") and document.get("apiVersion")
        )
        if unknown is UnknownFields.REFUSE and not is_object:
            place = f"document {number}: " if len(documents) > 1 else ""
            raise DocumentError(place + _no_object(document))
        if is_object and document["kind"] == "List":
            found += document.get("items") or []
        else:
            found.append(document)
    return found


def _read(file: Path, unknown: UnknownFields) -> list[Any]:
    try:
        text = file.read_text("utf-8")
        if unknown is UnknownFields.REFUSE:
            return read_documents(text)
        # what an operator wrote is read as it was written: y is a text there
        return [one for one in yaml.safe_load_all(text) if one is not None]
    except OSError as error:
        raise DocumentError(f"expected a file to read, got: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DocumentError(f"expected YAML, got an error: {error}") from error
    except RecursionError as error:
        raise DocumentError("expected YAML, got lists in lists without end") from error


def _no_object(document: Any) -> str:
    from batchedapi_serving.laptop.migrating.cortex import KINDS  # noqa: PLC0415 - for this error alone

    entries = document if isinstance(document, list) else [document]
    if any(isinstance(one, dict) and one.get("kind") in KINDS for one in entries):
        return (
            f"expected a {contract.KIND} document, got one of Cortex;"
            " `batchedapi migrate FILE` writes the manifest"
        )
    if isinstance(document, dict):
        missing = [name for name in ("apiVersion", "kind") if not document.get(name)]
        return (
            f"expected a {contract.KIND} document, got one without {' and '.join(missing)};"
            f" it begins with apiVersion: {contract.API_VERSION} and kind: {contract.KIND}"
        )
    return f"expected a {contract.KIND} document, got {_NAMES.get(type(document), 'a value')}"


_NAMES: Final[dict[type, str]] = {list: "a list", str: "a text", int: "a number"}


def _of_kind(documents: list[Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in documents if isinstance(one, dict) and one.get("kind") == kind]


def _files_of(config_map: dict[str, Any]) -> dict[str, bytes]:
    unknown = sorted(config_map.keys() - _OF_A_CONFIG_MAP)
    if unknown:
        known = ", ".join(sorted(_OF_A_CONFIG_MAP))
        raise DocumentError(f"ConfigMap {unknown[0]}: unknown field; expected {known}")
    files: dict[str, bytes] = {}
    for key, text in (config_map.get("data") or {}).items():
        if not isinstance(text, str):
            raise DocumentError(f"ConfigMap data.{key}: expected text, got {text!r:.100}")
        files[_plain(key)] = text.encode()
    for key, text in (config_map.get("binaryData") or {}).items():
        try:
            files[_plain(key)] = base64.b64decode("".join(text.split("\n")), validate=True)
        except (binascii.Error, AttributeError, ValueError) as error:
            raise DocumentError(f"ConfigMap binaryData.{key}: expected base64") from error
    return files


_OF_A_CONFIG_MAP: Final = {"apiVersion", "kind", "metadata", "data", "binaryData", "immutable"}


def _plain(key: object) -> str:
    """A ConfigMap key; anything else could name a file outside the folder."""
    text = str(key)
    if text in {"", ".", ".."} or not all(
        c.isascii() and (c.isalnum() or c in "-_.") for c in text
    ):
        raise DocumentError(f"ConfigMap key {text!r}: expected letters, digits, '-', '_' and '.'")
    return text


def _name_of(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""


def _list(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
