"""Does a large model come whole where its connections are cut, and once where replicas share it?

    python tests/bench/model_sources.py --mebibytes 2048

From a store that speaks S3, a server that speaks the API of the Hugging Face Hub and a registry of
images, each on this machine, over a way that counts. First for one replica, with all connections
cut after a third and after two thirds of the bytes. Then for three replicas that start at once and
share a cache. Each replica answers with the SHA-256 of what it loaded. Exit code 1: one is another,
a connection was not cut twice, or more than a tenth of the model came once more.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
import requests
from harness.report import Table, environment, help_of, out_option, report

from cut_connections import Way, way_to
from image_registry import running_registry
from model_hub import COMMIT, REPOSITORY, TOKEN, running_hub
from object_store import BUCKET, KEY, REGION, SECRET, running_store
from serving import Replica, end_replica, start_replica, write_manifest

_MIB: Final = 1 << 20
_REPLICAS: Final = 3
_CUTS: Final = 2
_AGAIN: Final = 0.1
"""Share of a model that may come once more: what was on its way when it was cut."""
_SECONDS: Final = 540
_CODE: Final = """
    import hashlib
    from pathlib import Path
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            path = Path(context.model_path)
            files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
            self.found = []
            for file in files:
                with file.open("rb") as opened:
                    self.found.append(hashlib.file_digest(opened, "sha256").hexdigest())

        @batched(example=0)
        def predict(self, items):
            return [self.found] * len(items)
"""


class Source(NamedTuple):
    """Where the model is."""

    address: str
    """Of its server, to which the way leads."""
    uri: str
    """HOST stands for the way's host and port."""
    variables: Mapping[str, str]
    """Of the replicas; HOST as in `uri`."""


class Found(NamedTuple):
    """What was seen."""

    source: str
    what: str
    replicas: int
    cuts: int
    tries: int
    """Lines `download failed` in the logs; obstore goes on by itself."""
    sent: float
    """Bytes of answers, as a multiple of the model's."""
    seconds: float
    """Until all were ready."""
    whole: bool


@contextlib.contextmanager
def _s3(model: bytes, _folder: Path) -> Iterator[Source]:
    with running_store() as store:
        store.objects["v1/model.bin"] = model
        yield Source(
            store.url,
            f"s3://{BUCKET}/v1/model.bin",
            {
                "AWS_ENDPOINT_URL": "http://HOST",
                "AWS_REGION": REGION,
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            },
        )


@contextlib.contextmanager
def _hf(model: bytes, _folder: Path) -> Iterator[Source]:
    with running_hub() as hub:
        hub.files["model.bin"] = model
        variables = {"HF_ENDPOINT": "http://HOST", "HF_TOKEN": TOKEN}
        yield Source(hub.url, f"hf://{REPOSITORY}@{COMMIT}/model.bin", variables)


@contextlib.contextmanager
def _oci(model: bytes, folder: Path) -> Iterator[Source]:
    with running_registry(folder) as registry:
        reference = registry.push_files("models/digits", {"model.bin": model})
        uri = f"oci://{reference.replace(registry.address, 'HOST')}"
        yield Source(f"http://{registry.address}", uri, {})


_SOURCES: Final = {"s3": _s3, "hf": _hf, "oci": _oci}


def _answers(folder: Path, source: Source, way: Way, *, cached: bool, count: int) -> list[Replica]:
    """Start replicas at once."""
    host = way.url.removeprefix("http://")
    variables = {name: value.replace("HOST", host) for name, value in source.variables.items()}
    model = {"uri": source.uri.replace("HOST", host), **({"cache": {"pvc": "m"}} if cached else {})}
    manifest = write_manifest(folder, _CODE, {"predictor": {"model": model}})
    kept = {"XDG_CACHE_HOME": str(folder), "no_proxy": "localhost,127.0.0.1"}
    return [
        start_replica(folder, ["-f", str(manifest)], {**variables, **kept}) for _ in range(count)
    ]


def _seen(name: str, source: Source, model: bytes, *, cuts: tuple[int, ...], count: int) -> Found:
    """One way, and replicas that start at once: with cuts alone, else with a cache."""
    wanted = [hashlib.sha256(model).hexdigest()]
    with (
        tempfile.TemporaryDirectory(prefix="bench-models-") as folder,
        way_to(source.address, *cuts) as way,
    ):
        began = time.perf_counter()
        replicas = _answers(Path(folder), source, way, cached=not cuts, count=count)
        try:
            for replica in replicas:
                replica.wait_for(
                    lambda of=replica: of.admin("/readyz")[0] == 200, "ready", _SECONDS
                )
            seconds = time.perf_counter() - began
            urls = (f"http://127.0.0.1:{replica.port}/api" for replica in replicas)
            found = [requests.post(url, json=0, timeout=60).json() for url in urls]
            tries = sum(replica.text().count("download failed") for replica in replicas)
        finally:
            for replica in replicas:
                end_replica(replica)
        return Found(
            name, "cut twice" if cuts else "a shared cache", count, len(cuts) - len(way.cuts),
            tries, way.sent / len(model), seconds, all(one == wanted for one in found),
        )  # fmt: skip


def _all(size: int) -> Iterator[Found]:
    """Each source, cut and shared."""
    model = os.urandom(size)
    for name, running in _SOURCES.items():
        with (
            tempfile.TemporaryDirectory(prefix="bench-models-") as folder,
            running(model, Path(folder)) as source,
        ):
            yield _seen(name, source, model, cuts=(size // 3,) * _CUTS, count=1)
            yield _seen(name, source, model, cuts=(), count=_REPLICAS)


def _wrong(found: Found) -> bool:
    uncut = found.what == "cut twice" and found.cuts < _CUTS
    return uncut or not found.whole or found.sent > 1 + _AGAIN


@click.command(help=help_of(__doc__))
@click.option("--mebibytes", type=click.IntRange(24), default=2048, show_default=True)
@out_option
def main(mebibytes: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    found = list(_all(mebibytes * _MIB))
    rows = [
        [
            one.source, one.what, f"{one.replicas}", f"{one.cuts}", f"{one.tries}",
            f"{one.sent:.3f}", f"{one.seconds:.1f}", "yes" if one.whole else "NO",
        ]
        for one in found
    ]  # fmt: skip
    head = ["source", "with", "replicas", "cuts", "tries that failed", "bytes sent / model",
            "seconds to ready", "whole"]  # fmt: skip
    report(
        "model_sources", began,
        [Table(f"a model of {mebibytes} MiB", head, rows)],
        notes=["Seconds include the model's own SHA-256, and that of the source where it has one."],
        measured={"mebibytes": mebibytes, "found": [one._asdict() for one in found]},
        out=out,
    )  # fmt: skip
    sys.exit(1 if any(_wrong(one) for one in found) else 0)


if __name__ == "__main__":
    main()
