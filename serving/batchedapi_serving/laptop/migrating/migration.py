"""Rules that translate one server's configuration: a key has a field, a remedy, or is named.

Every translation is a table in the shape of the file it reads. `Draft.take` walks file and table
together, so that no key is lost silently: one that the table lacks, or whose value the field does
not take, becomes a note.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urljoin

import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, UnknownFields, format_duration, parse_api
from batchedapi_core.manifest.predictor import MODEL_URI
from batchedapi_core.model_format import ModelFormat

MANIFEST: Final = "batchedapi.yaml"
MODULE: Final = "batched_model"
PREDICTOR: Final = f"{MODULE}.py"
MARK: Final = "  # EDIT: "
NO_FIELD: Final = "there is no field for it"
UNKNOWN: Final = "leave it out, or do it in the class"
_NAME_LENGTH: Final = 45
_SECTIONS: Final = ("predictor", "serverSideBatching", "overload", "compute", "pod", "autoscaling",
                    "updateStrategy", "networking")  # fmt: skip
IMAGE: Final = "install it in predictor.image, which begins FROM batchedapi-serving"
_EXECUTES: Final = frozenset({ModelFormat.SKLEARN, ModelFormat.TORCHSCRIPT})
"""Formats most of whose files run code as they are loaded."""
_CONFIGURATION: Final = "is configuration too: run batchedapi migrate on it in a folder of its own"
_BESIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("requirements*.txt", "dependencies.sh", "conda*", "environment.y*ml", "pyproject.toml",
         "setup.*", "Pipfile*", "poetry.lock", "uv.lock", "Dockerfile*"), IMAGE,
    ),
    **dict.fromkeys(
        ("cortex*.y*ml", "bento*.y*ml", "config.p*", "model-config.y*ml", "model_config.y*ml"),
        _CONFIGURATION,
    ),
    "*.py": "code is not translated: call it from the class, or move it there",
    "*": "copy what the class needs into the image; predictor.model.uri fetches a model",
}  # fmt: skip
"""Files beside the one that is read: pattern -> what to do."""
_SILENT: Final = ("README*", "LICENSE*", "__pycache__/", MANIFEST, PREDICTOR)


class MigrateError(ValueError):
    """The file cannot be taken over; says why, and what to do instead."""


class MigrationNote(NamedTuple):
    """One thing of the source that was not taken over as it was."""

    place: str
    reason: str
    remedy: str


class To(NamedTuple):
    """The field that a key becomes."""

    field: str
    """Path below `spec`."""
    convert: Callable[[Any], Any] = lambda value: value
    """Raises ValueError, TypeError or AttributeError for a value that it does not take."""


Rules: TypeAlias = Mapping[str, Any]
"""Key -> Rules of what is below it, To, a remedy (text), None (read by the translation itself), or
a function of (draft, place, value). `*` is every other key; without it such keys are notes."""


@dataclass(frozen=True, slots=True)
class Project:
    """The file that is migrated, and what is beside it."""

    folder: str
    """Name; names the API where the file does not."""
    file: str
    text: str
    beside: Mapping[str, str]
    """Text by name, of what is small; a folder ends with `/`."""
    uri: str
    """Of the folder on this machine, without a slash at the end."""

    def documents(self) -> list[Any]:
        """YAML documents that are not empty."""
        return documents(self.text)

    def uri_of(self, path: Any) -> str:
        """Of a file on this machine, by a path that begins here where it is not absolute.

        Raises:
            ValueError: it is no text.
        """
        return urljoin(f"{self.uri}/", quote(text(path)))

    def version(self, chosen: Sequence[int] = ()) -> str:
        """The latest of the folders that are numbers, or of those that are chosen; 1 if none is."""
        found = [int(name[:-1]) for name in self.beside if re.fullmatch("[0-9]+/", name)]
        return str(max(chosen or found or [1]))


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, where the first would vanish."""

    def keys_once(self, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [one.value for one, _ in node.value if isinstance(one, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if key in keys[:number] and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected each key once, got {key!r} twice", node.start_mark
                )
        self.flatten_mapping(node)
        return self.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.keys_once)


def documents(text: str) -> list[Any]:
    """YAML documents that are not empty.

    Raises:
        MigrateError: it is no YAML.
    """
    try:
        loaded = yaml.load_all(text, _Loader)
        return [one for one in loaded if one is not None]
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise MigrateError(f"expected YAML, got {error}") from error


@dataclass(slots=True)
class Draft:
    """One API while its source is read."""

    name: str
    class_name: str = "Model"
    labels: dict[str, Any] = field(default_factory=dict)
    """Fields of metadata: namespace, labels and annotations."""
    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[MigrationNote] = field(default_factory=list)
    code: str = ""
    """Its class; empty: the user's own class is served."""
    imports: tuple[str, ...] = ("from batchedapi_serving import batched",)
    _places: dict[str, str] = field(default_factory=dict)
    """Field -> where the source has it."""

    def tell(self, place: str, reason: str, remedy: str) -> None:
        """Note what is not taken over."""
        self.notes.append(MigrationNote(place, reason, remedy))

    def take(self, value: Any, rules: Any, place: str) -> None:
        """Translate a value by its rules; null is absent."""
        if value is None or rules is None:
            return
        if isinstance(rules, str):
            if value is not False and value not in ("", [], {}):
                self.tell(place, NO_FIELD, rules)
        elif isinstance(rules, To):
            try:
                self.set(rules.field, rules.convert(value), place)
            except (ValueError, TypeError, AttributeError) as error:
                self.tell(place, f"{error}", f"set spec.{rules.field}")
        elif isinstance(rules, Mapping):
            if isinstance(value, list):
                for number, member in enumerate(value):
                    self.take(member, rules, f"{place}[{number}]")
                return
            for key, member in self.mapping(value, place).items():
                below = rules.get(str(key), rules.get("*", UNKNOWN))
                self.take(member, below, f"{place}.{key}".removeprefix("."))
        else:
            rules(self, place, value)

    def mapping(self, value: Any, place: str) -> Mapping[str, Any]:
        """The value, if it is a mapping; anything else but null is noted."""
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self.tell(place, f"expected a mapping, got {value!r:.60}", "write its fields by hand")
        return {}

    def whole(self, value: Any, default: int, place: str) -> int:
        """The value, if it is a whole number; anything else is noted, and the default taken."""
        try:
            return whole(value)
        except ValueError as error:
            self.tell(place, f"{error}; {default} is taken", "see what is right, and write it")
            return default

    def set(self, path: str, value: Any, place: str) -> None:
        """Write one field below `spec`."""
        if value is None:
            return
        *sections, name = path.split(".")
        section = self.spec
        for part in sections:
            section = section.setdefault(part, {})
        if name in section and section[name] != value and path in self._places:
            self.tell(self._places[path], f"{place} beside it holds here", f"see spec.{path}")
        section[name] = value
        self._places[path] = place

    def serve(self, model: ModelFormat, place: str) -> bool:
        """Serve `predictor.model` without a class, if its uri is known; else one is to be written.

        Trust is the user's word, and so is no field that another server's file could fill.
        """
        if "uri" not in self.spec.get("predictor", {}).get("model", {}):
            self.tell(place, "does not say where the model is", "set spec.predictor.model.uri")
            return False
        self.set("predictor.model.format", model.value, place)
        if model in _EXECUTES:
            reason = "its file may run code while it is loaded, which is refused at first"
            remedy = "if you know who made it set spec.predictor.model.trusted: true"
            self.tell(place, reason, remedy)
        return True

    def manifest(self, name: str) -> dict[str, Any]:
        """The BatchedAPI; values that a field does not take are left out and noted.

        Raises:
            MigrateError: what is left is no BatchedAPI.
        """
        while True:
            spec = {key: self.spec[key] for key in _SECTIONS if self.spec.get(key)}
            document = {
                "apiVersion": contract.API_VERSION,
                "kind": contract.KIND,
                "metadata": {"name": name, **self.labels},
                "spec": spec,
            }
            try:
                parse_api(document, UnknownFields.REFUSE)
            except ManifestError as error:
                dropped = [self._drop(problem) for problem in error.problems]
                if not any(dropped):
                    raise MigrateError("; ".join(error.problems)) from error
            else:
                return document

    def _drop(self, problem: str) -> bool:
        """Leave out the field that a problem begins with; whether there is one."""
        metadata = re.match(r"metadata\.(\w+)", problem)
        if metadata is not None and metadata[1] in self.labels:
            del self.labels[metadata[1]]
            self.tell(metadata[0], problem, "set it by hand")
            return True
        found = [path for path in self._places if re.match(rf"spec\.{re.escape(path)}\b", problem)]
        if not found or max(found, key=len) == "predictor.path":
            return False
        path = max(found, key=len)
        parts = path.split(".")
        while parts:  # and the sections that are empty then
            section = self.spec
            for part in parts[:-1]:
                section = section[part]
            section.pop(parts.pop(), None)
            if section:
                break
        self.tell(self._places.pop(path), problem, f"set spec.{path}")
        return True


@dataclass(frozen=True, slots=True)
class Migration:
    """Files to write, and what is not in them."""

    names: Sequence[str]
    """Names of the APIs."""
    files: Mapping[str, str]
    notes: Sequence[MigrationNote]

    def edits(self) -> Iterator[tuple[str, int, str]]:
        """Lines that only a person can write: file, number from 1, what to write there."""
        for name, text in self.files.items():
            for number, line in enumerate(text.splitlines(), 1):
                if MARK in line:
                    yield name, number, line.partition(MARK)[2]


def finished(project: Project, drafts: Sequence[Draft], read: Sequence[str] = ()) -> Migration:
    """The files of all APIs.

    Args:
        project: The source.
        drafts: One for each API.
        read: Names beside the file that were read too.
    """
    notes: list[MigrationNote] = []
    names: list[str] = []
    imports: dict[str, None] = {}
    manifests, classes = [], []
    for draft in drafts:
        name = base = api_name(draft.name)
        while name in names:
            name = f"{base[: _NAME_LENGTH - 4]}-{len(names) + 1}"
        names.append(name)
        if name != draft.name:
            reason = "is taken, or Kubernetes does not take it"
            draft.tell(f"name {draft.name!r}", reason, f"clients ask for {name}")
        if draft.code:
            place = "its class" if len(drafts) == 1 else f"class of {name}"
            draft.set("predictor.path", f"{MODULE}:{draft.class_name}", place)
            imports |= dict.fromkeys(draft.imports)
            classes.append(draft.code)
        manifests.append(draft.manifest(name))
        notes += draft.notes
    text = yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=len(manifests) > 1)
    files = {MANIFEST: text}
    if classes:
        files[PREDICTOR] = "\n\n\n".join(["\n".join(imports), *classes])
    notes += _beside(project, read)
    return Migration(names, files, list(dict.fromkeys(notes)))


def _beside(project: Project, read: Sequence[str]) -> list[MigrationNote]:
    by_remedy: dict[str, list[str]] = {}
    for name in project.beside:
        if name in {*read, project.file} or any(fnmatch.fnmatch(name, one) for one in _SILENT):
            continue
        pattern = next(one for one in _BESIDE if fnmatch.fnmatch(name, one))
        by_remedy.setdefault(_BESIDE[pattern], []).append(name)
    return [
        MigrationNote(", ".join(names), "is beside it and was not read", remedy)
        for remedy, names in by_remedy.items()
    ]


def skeleton(class_name: str, inputs: str = "", outputs: str = "", load: str = "") -> str:
    """A class whose two methods are to be filled in.

    Args:
        class_name: How it is called.
        inputs: Tensors as code; empty: items as JSON has them.
        outputs: The same of its answers.
        load: Code that makes the model, where it is known.
    """
    made = load or f"None{MARK}load the model; context.model_path is what predictor.model.uri names"
    if inputs:
        declared = f"inputs={inputs},\n        outputs={outputs},"
        takes, rows = "x", "arrays by name, rows of n clients first -> the same of n answers"
    else:
        declared = f"example=None,{MARK}the body of one request, which `batchedapi check` asks with"
        takes, rows = "items", "bodies of n clients -> a list of n answers"
    return f"""\
class {class_name}:
    def __init__(self, config, context):
        self.model = {made}

    @batched(
        {declared}
    )
    def predict(self, {takes}):  # {rows}
        raise NotImplementedError("write {class_name}.predict"){MARK}call the model
""".rstrip("\n")


def api_name(text: str) -> str:
    """A name that Kubernetes takes, as near as possible to `text`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:_NAME_LENGTH].strip("-")
    return name if name[:1].isalpha() else f"api-{name}".strip("-")[:_NAME_LENGTH]


def drafts_of(names: Sequence[str]) -> list[Draft]:
    """A draft for each API; its class is `Model`, or of several one with the API's name."""
    if len(names) == 1:
        return [Draft(names[0])]
    classes: list[str] = []
    for name in names:
        words = "".join(part.capitalize() for part in re.findall("[A-Za-z0-9]+", name))
        classes.append(f"Model{words}{len(classes) if f'Model{words}' in classes else ''}")
    return [Draft(name, class_name) for name, class_name in zip(names, classes, strict=True)]


def concurrency(draft: Draft, place: str, value: Any) -> None:
    """Requests at once of a replica that replicas are scaled by."""
    draft.take(value, To("autoscaling.targetReplicaConcurrency", text), place)
    draft.set("autoscaling.policy", "Concurrency", place)


# ------------------------------------------------------------ values


def _number(value: Any, wanted: str) -> float:
    try:
        return float("a boolean" if isinstance(value, bool) else value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"expected {wanted}, got {value!r:.60}") from error


def whole(value: Any) -> int:
    """A whole number, also as a text."""
    number = _number(value, "a whole number")
    if not number.is_integer():
        raise ValueError(f"expected a whole number, got {value!r:.60}")
    return int(number)


def text(value: Any) -> str:
    """A quantity or another short text, which may be a number in the source."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a text or a number, got {value!r:.60}")  # noqa: TRY004 - as above
    return str(value)


def model_uri(value: Any) -> str:
    """An address of a model; KServe has a colon before a revision of the Hub."""
    uri = re.sub("^(hf://[^/]+/[^/:@]+):", r"\1@", text(value))
    if not re.match(MODEL_URI, uri):
        raise ValueError(f"expected an address that predictor.model.uri takes, got {value!r:.60}")
    return uri


def quantity(value: Any) -> str:
    """Bytes as Kubernetes writes them: 500MiB is 500Mi."""
    found = re.fullmatch(r"([0-9.]+) ?([kKMGTP]?)(i?)[bB]?", text(value).strip())
    if found is None:
        return text(value)  # the field says what it takes
    prefix = "k" if found[2] == "K" and not found[3] else found[2]
    return f"{found[1]}{prefix}{found[3]}"


def seconds(value: Any, unit: float = 1) -> str:
    """A duration from a number of units of so many seconds."""
    number = _number(value, "a number")
    if not 0 <= number * unit <= 1e9:  # noqa: PLR2004 - what is longer is no time
        raise ValueError(f"expected a number from 0 on, got {value!r:.60}")
    return format_duration(round(number * unit, 9))


def milliseconds(value: Any) -> str:
    """A duration from a number of ms."""
    return seconds(value, 1e-3)


def variables(value: Any) -> list[dict[str, Any]]:
    """Environment variables, from a mapping or from a list that has name and value."""
    if isinstance(value, Mapping):
        return [{"name": str(name), "value": _plain(one)} for name, one in value.items()]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"expected variables, got {value!r:.60}")
    return [
        {**one, "value": _plain(one["value"])} if one.get("value") is not None else dict(one)
        for one in value
    ]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else text(value)
