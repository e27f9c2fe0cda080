"""`spec.predictor`: the user's class, its model, its methods, and its processes."""

import enum
import re
from typing import Annotated, ClassVar, Final, Self, TypeVar

from pydantic import AfterValidator, Field, JsonValue, StringConstraints

from batchedapi_core import contract
from batchedapi_core.manifest import kubernetes
from batchedapi_core.manifest.batching import MethodBatching, Size
from batchedapi_core.manifest.rules import (
    DNS_NAME,
    DNS_WORDS,
    Flag,
    ManifestModel,
    Rule,
    Whole,
    count_or_word,
    count_or_word_schema,
    no_two_alike,
    one_of_rule,
    without_default,
    worded,
)
from batchedapi_core.manifest.units import Duration, duration_field
from batchedapi_core.model_format import NAME_THAT_TELLS, SUFFIXES, ModelFormat, format_of_name
from batchedapi_core.placement import THREAD_VARIABLES, GpuAssignment

CPU_COUNT: Final = "cpu_count"
AUTO: Final = "Auto"
MODEL_URI: Final = (
    r"^(file:///|https://[^/\s]+/|s3://[a-z0-9][a-z0-9.-]*/|(gs|az)://[a-z0-9][a-z0-9._-]*/"
    r"|hf://[^/@\s]+/[^/@\s]+(@[^/@\s]+)?(/|$)|oci://[^/@\s]+/[^@\s]+@sha256:[0-9a-f]{64}(/|$)"
    r"|pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/|$))[^\s]*$"
)

OCI: Final = "oci://"
_IMAGE_VOLUME: Final = "image://"
"""In place of OCI, in no manifest: what the operator mounts."""

OWN_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME")
OWN_PREFIXES: Final = ("LD_", "BATCHEDAPI_")
"""Variables by which a replica finds its interpreter, its libraries and its own settings."""
_COUNT: Final = "^[1-9][0-9]{0,4}$"
_IMAGE: Final = "^[A-Za-z0-9][-A-Za-z0-9._:/@]*$"

Name = Annotated[
    str, StringConstraints(pattern=worded(f"^{DNS_NAME}$", DNS_WORDS), min_length=1, max_length=253)
]
"""The name of an object in a cluster: it becomes part of the path of a request."""


class LogLevel(enum.StrEnum):
    """Least severe log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ImagePullPolicy(enum.StrEnum):
    """When the kubelet asks the registry."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Source(ManifestModel):
    """Where the predictor's code comes from. Absent: it is in the image."""

    config_map: Name | None = Field(
        None, description="ConfigMap in the same namespace whose keys are the source files."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.configMap) || has(self.inImage)",
            check=lambda s: s.config_map is not None,
            message="spec.predictor.source needs configMap; leave source out where the code is in"
            " the image",
            field_path=".configMap",
        ),
    )


class PredictorEnvSource(kubernetes.EnvVarSource):
    """Where the value of a variable comes from."""

    rules: ClassVar[tuple[Rule, ...]] = (
        one_of_rule(
            "spec.predictor.env[].valueFrom",
            ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef"),
        ),
    )


class PredictorEnvFrom(kubernetes.EnvFromSource):
    """A ConfigMap or Secret whose keys are environment variables."""

    rules: ClassVar[tuple[Rule, ...]] = (
        one_of_rule("spec.predictor.envFrom[]", ("configMapRef", "secretRef")),
    )


class PredictorEnv(kubernetes.EnvVar):
    """One environment variable of the model processes."""

    name: Annotated[
        str,
        StringConstraints(
            pattern=worded(
                r"^[A-Za-z_][A-Za-z0-9_.-]*$",
                "expected letters, digits and '_.-', not beginning with a digit",
            ),
            max_length=253,
        ),
    ]
    value: Annotated[str, StringConstraints(max_length=32768)] = Field(
        "", json_schema_extra=without_default
    )
    value_from: PredictorEnvSource | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.valueFrom) || !has(self.value) || self.value == ''",
            check=lambda e: e.value_from is None or e.value == "",
            message="spec.predictor.env[].valueFrom and value cannot both be there: leave one out",
            field_path=".valueFrom",
        ),
        Rule(
            cel=f"!(self.name in {list(OWN_VARIABLES)})"
            + "".join(f" && !self.name.startsWith('{head}')" for head in OWN_PREFIXES),
            check=lambda e: e.name not in OWN_VARIABLES and not e.name.startswith(OWN_PREFIXES),
            message="spec.predictor.env[].name must not be"
            f" {', '.join(OWN_VARIABLES)}, {'* or '.join(OWN_PREFIXES)}*: the replica itself starts"
            " by them; put libraries into the image, and settings into their own fields",
            field_path=".name",
            new_only=True,
        ),
        Rule(
            cel=f"!(self.name in {list(THREAD_VARIABLES)})"
            f" || (has(self.value) && self.value.matches('{_COUNT}'))",
            check=lambda e: (
                e.name not in THREAD_VARIABLES or re.fullmatch(_COUNT, e.value) is not None
            ),
            message="spec.predictor.env[].value must be a number of threads, from 1 on, for"
            f" {', '.join(THREAD_VARIABLES)}: libraries take anything else for no limit at all",
            field_path=".value",
            new_only=True,
        ),
        Rule(
            cel=r"!has(self.value) || !self.value.contains('\x00')",
            check=lambda e: "\0" not in e.value,
            message="spec.predictor.env[].value must not have the character NUL in it: no process"
            " can be started with it",
            field_path=".value",
            new_only=True,
        ),
    )


Named = TypeVar("Named", "PredictorEnv", "PredictorMethod")


def _unique_names(members: list[Named]) -> list[Named]:
    no_two_alike([member.name for member in members])
    return members


class ModelCache(ManifestModel):
    """Keeps what was fetched, so that replicas which share it fetch each version once."""

    pvc: Name = Field(
        description="PersistentVolumeClaim in the same namespace that replicas write to; one of"
        " ReadWriteOnce is for those of a node. On a laptop it is a folder of the user's cache."
    )


class ModelSpec(ManifestModel):
    """Weights that are there before the predictor is made, at `context.model_path`.

    Without `path`, a model that is served as it is.
    """

    uri: Annotated[
        str,
        StringConstraints(
            pattern=worded(
                MODEL_URI,
                "expected file:///path, https://host/path, s3://bucket/key (or gs, az),"
                " hf://org/name@revision, oci://registry/name@sha256:digest or pvc://claim/path",
            ),
            max_length=2048,
        ),
    ] = Field(
        description="File or folder: file:///path, https://host/path, s3://bucket/key (gs and az"
        " alike), hf://ORG/NAME@REVISION, oci://REGISTRY/NAME@sha256:DIGEST, or pvc://CLAIM/path,"
        " which is mounted read-only and works in a cluster alone."
    )
    sha256: (
        Annotated[
            str,
            StringConstraints(
                pattern=worded(
                    r"^[0-9a-f]{64}$",
                    "expected 64 digits and letters a to f, as sha256sum prints them",
                ),
                max_length=64,
            ),
        ]
        | None
    ) = Field(None, description="Of the file, in hex; a model with another digest is not loaded.")
    format: ModelFormat | None = Field(
        None,
        description="What serves it without predictor.path. Absent: as the end of its name says:"
        f" {', '.join(f'.{suffix}' for suffix in SUFFIXES)}; of hf:// else huggingface.",
    )
    trusted: Flag | None = Field(
        None,
        description="Without predictor.path: whether code that the file brings may run. A pickle"
        " runs code while it is loaded.",
    )
    cache: ModelCache | None = Field(None, description=ModelCache.__doc__ or "")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.cache) || !self.uri.matches('^(file|pvc):')",
            check=lambda m: m.cache is None or not m.uri.startswith(("file:", "pvc:")),
            message="spec.predictor.model.cache would do nothing: a model at file:// or pvc:// is"
            " used in place; leave it out",
            field_path=".cache",
        ),
        Rule(
            cel="!self.uri.split('/').exists(part, part == '..')",
            check=lambda m: ".." not in m.uri.split("/"),
            message="spec.predictor.model.uri must not have .. in its path",
            field_path=".uri",
        ),
    )

    @property
    def served_as(self) -> ModelFormat | None:
        """The format, as it is written or as the name tells; None: neither does."""
        return self.format or format_of_name(self.uri)

    def with_image_mounted(self) -> Self:
        """An `oci://` model as the operator mounts it: there is nothing to fetch or to keep."""
        if not self.uri.startswith(OCI):
            return self
        mounted = f"{_IMAGE_VOLUME}{self.uri.removeprefix(OCI)}"
        return self.model_copy(update={"uri": mounted, "cache": None})

    @property
    def image(self) -> str | None:
        """Reference of the image that is mounted, as with_image_mounted says."""
        return self._image_and_path[0] if self.uri.startswith(_IMAGE_VOLUME) else None

    @property
    def _image_and_path(self) -> tuple[str, str]:
        """At the digest's end the path begins."""
        name, _, rest = self.uri.removeprefix(_IMAGE_VOLUME).partition("@")
        digest, _, path = rest.partition("/")
        return f"{name}@{digest}", path

    @property
    def claim(self) -> str | None:
        """PersistentVolumeClaim that a `pvc://` model is in."""
        return self.uri.split("/")[2] if self.uri.startswith("pvc://") else None

    @property
    def served_uri(self) -> str:
        """The address that a replica is told: a claim or an image is a folder of its own."""
        if self.image is not None:
            path = self._image_and_path[1].strip("/")
        elif self.claim is not None:
            path = self.uri.removeprefix(f"pvc://{self.claim}").strip("/")
        else:
            return self.uri
        return f"file://{contract.MODEL_DIRECTORY}/{path}".rstrip("/")


class WarmUpSpec(ManifestModel):
    """Batches that are run before a replica is ready."""

    enabled: Flag = Field(True, description="false: the first requests pay for what loads lazily.")
    batch_sizes: Annotated[list[Size], AfterValidator(no_two_alike)] = Field(
        default_factory=list,
        max_length=32,
        description="Sizes to run. Empty: 1, 2, 4, ... and maxBatchSize.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class PredictorMethod(ManifestModel):
    """One method of the class. What is absent is what its decorator says."""

    name: Annotated[
        str,
        StringConstraints(
            pattern=worded(
                r"^([A-Za-z][A-Za-z0-9_]*|__call__)$",
                "expected the name of a method in Python, not beginning with '_', or __call__",
            ),
            max_length=63,
        ),
    ] = Field(description="The method's name in the class.")
    batchable: Flag | None = Field(
        None, description="Whether requests are put together. Absent: whether it has @batched."
    )
    batch_dim: Annotated[Whole, Field(ge=0, le=7)] | None = Field(
        None, description="Dimension along which rows are put together."
    )
    output_batch_dim: Annotated[Whole, Field(ge=0, le=7)] | None = Field(
        None, description="Dimension along which answers are taken apart. Absent: batchDim."
    )
    server_side_batching: MethodBatching | None = Field(
        None, description=MethodBatching.__doc__ or ""
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.outputBatchDim) || has(self.batchDim)",
            check=lambda m: m.output_batch_dim is None or m.batch_dim is not None,
            message="spec.predictor.methods[].outputBatchDim needs batchDim beside it",
            field_path=".outputBatchDim",
            reason="FieldValueRequired",
        ),
        Rule(
            cel="!has(self.batchable) || self.batchable"
            " || (!has(self.serverSideBatching) && !has(self.batchDim))",
            check=lambda m: (
                m.batchable is not False or (m.server_side_batching is None and m.batch_dim is None)
            ),
            message="spec.predictor.methods[].batchable is false: serverSideBatching and batchDim"
            " beside it would do nothing; leave them out, or set it to true",
            field_path=".batchable",
        ),
    )


_Processes = Annotated[
    int | str,
    count_or_word(CPU_COUNT, contract.MAX_PROCESSES),
    count_or_word_schema(CPU_COUNT, contract.MAX_PROCESSES),
]
_CpuThreads = Annotated[
    int | str,
    count_or_word(AUTO, contract.MAX_CPU_THREADS),
    count_or_word_schema(AUTO, contract.MAX_CPU_THREADS),
]


class Predictor(ManifestModel):
    """The user's class, or a model that needs none, and how many copies of it a replica runs."""

    path: (
        Annotated[
            str,
            StringConstraints(
                pattern=worded(
                    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
                    "expected module:Class or file.py:Class, such as model:Iris",
                ),
                max_length=253,
            ),
        ]
        | None
    ) = Field(
        None,
        description="The predictor class as `module:Class`, or `file.py:Class`. Looked for in the"
        " manifest's folder, then in the working directory. Absent: `model` is served as it is.",
    )
    source: Source | None = Field(
        None, description="Where the code comes from. Absent: it is in the image."
    )
    model: ModelSpec | None = Field(None, description=ModelSpec.__doc__ or "")
    config: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Handed to the predictor's constructor as it is.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    env: Annotated[list[PredictorEnv], AfterValidator(_unique_names)] = Field(
        default_factory=list,
        max_length=128,
        description="Environment variables of the model processes; not those that the replica"
        f" itself starts by: {', '.join(OWN_VARIABLES)}, {'*, '.join(OWN_PREFIXES)}*. A change is"
        " a new revision.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    env_from: list[PredictorEnvFrom] = Field(
        default_factory=list,
        max_length=32,
        description="ConfigMaps and Secrets in the same namespace whose keys are variables; of"
        " equal names the later one counts, and env before both. With a key that env must not set"
        " the replica does not start, and says which.",
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        None, description="Serving image. Absent: the operator's default."
    )
    image_pull_policy: ImagePullPolicy = Field(
        ImagePullPolicy.IF_NOT_PRESENT, description="When the kubelet asks the registry."
    )
    methods: Annotated[list[PredictorMethod], AfterValidator(_unique_names)] = Field(
        default_factory=list,
        max_length=contract.MAX_METHODS,
        description="What the manifest says of single methods; it beats their decorators.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    processes_per_replica: _Processes = Field(
        1,
        description="Model processes per replica, each with its own model copy; cpu_count: as many"
        " as the CPUs that its container is limited to, else those it requests.",
    )
    threads_per_process: Whole = Field(
        1,
        ge=1,
        le=1024,
        description="Batches that one model process runs at once (lanes); 1 for CPU-bound models.",
    )
    gpu_assignment: GpuAssignment = Field(
        GpuAssignment.AUTO,
        description="GPUs that each process sees: Exclusive ones, one in turn (RoundRobin), All or"
        " None. Auto: Exclusive where GPUs are a multiple of processes, else RoundRobin.",
    )
    cpu_threads: _CpuThreads = Field(
        AUTO,
        description="Threads of numerical libraries (OMP_NUM_THREADS and its like) in each process."
        " Auto: the CPUs divided by the processes, where no such variable is set. env beats both.",
    )
    web_processes: Whole = Field(
        1,
        ge=1,
        le=contract.MAX_WEB_PROCESSES,
        description="Processes that read requests and write answers, for bodies that are costly to"
        " decode; their rows meet in one queue.",
    )
    warmup: WarmUpSpec = Field(
        default_factory=WarmUpSpec,
        description=WarmUpSpec.__doc__ or "",
        json_schema_extra={"default": {}},
    )
    startup_timeout: Duration = duration_field(
        "600s",
        at_least="1s",
        at_most="24h",
        description="A model that is not fetched, constructed and warmed up by then is a start that"
        " failed; the startup probe and the Deployment's progress deadline follow it.",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="Least severe log lines written.")

    @property
    def variables(self) -> dict[str, str]:
        """Variables whose values the manifest says itself."""
        return {one.name: one.value for one in self.env if one.value_from is None}

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.path) || (has(self.model)"
            f" && (has(self.model.format) || self.model.uri.matches('{NAME_THAT_TELLS}')))",
            check=lambda p: (
                p.path is not None or (p.model is not None and p.model.served_as is not None)
            ),
            message="spec.predictor.path is required, unless model is served as it is; name a"
            " class, or give model.uri and, if the name of the file does not tell it, model.format",
            field_path=".path",
            reason="FieldValueRequired",
        ),
        Rule(
            cel="!has(self.path) || !has(self.model)"
            " || (!has(self.model.format) && !has(self.model.trusted))",
            check=lambda p: (
                p.path is None
                or p.model is None
                or (p.model.format is None and p.model.trusted is None)
            ),
            message="spec.predictor.path loads the model itself: model.format and model.trusted"
            " beside it would do nothing; leave them out, or path",
            field_path=".path",
        ),
        Rule(
            cel="has(self.path) || !has(self.source)",
            check=lambda p: p.path is not None or p.source is None,
            message="spec.predictor.source needs path beside it; leave it out where model is"
            " served as it is",
            field_path=".source",
        ),
        Rule(
            cel=f"!has(self.image) || self.image.matches('{_IMAGE}')",
            check=lambda p: p.image is None or re.fullmatch(_IMAGE, p.image) is not None,
            message="spec.predictor.image must be a reference such as registry.example/name:tag:"
            " letters, digits and -._:/@ alone",
            field_path=".image",
            new_only=True,
        ),
    )
