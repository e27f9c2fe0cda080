"""`batchedapi migrate`: reads another server's file, writes a manifest and a predictor."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import yaml

from batchedapi_core.manifest import ManifestError, UnknownFields, parse_api
from batchedapi_serving.migrating.migration import (
    MANIFEST,
    SAMPLES,
    MigrateError,
    Migration,
    Project,
)

_MOST_BYTES: Final = 1 << 20
"""Of a file that is read: code and configuration are smaller."""
_SUFFIXES: Final = (".py", ".pt", ".pth")


@click.command("migrate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def migrate_command(file: Path) -> None:
    """Write batchedapi.yaml, and a predictor, beside the FILE of another server.

    FILE is cortex.yaml, a BentoML configuration or service.py, Triton's config.pbtxt, TorchServe's
    config.properties, or KServe's InferenceService. Each line that is not taken over is said with
    its reason and what to do instead. Files that are there are left as they are. Exit code 0:
    written; 2: FILE cannot be taken over, or a file is there already.

    \b
    Examples:
      batchedapi migrate cortex.yaml
      batchedapi migrate densenet/config.pbtxt
    """
    try:
        # The file, with code and samples beside it; of weights only that they are there.
        folder = file.resolve().parent
        texts = {
            str(path.relative_to(folder)): path.read_text("utf-8", "replace")
            if path.suffix not in {".pt", ".pth"} and path.stat().st_size <= _MOST_BYTES
            else ""
            for path in sorted([*folder.glob("*"), *folder.glob("*/*.py")])
            if path.is_file() and (path.suffix in _SUFFIXES or path.name in SAMPLES)
        }
        texts[file.name] = file.read_text("utf-8", "replace")
        project = Project(folder.name, file.name, texts)
        migration = _translator(project)(project)
        parse_api(dict(migration.manifest), UnknownFields.REFUSE)
        written = _write(file.parent, migration)
    except (MigrateError, ManifestError) as error:
        problems = error.problems if isinstance(error, ManifestError) else (str(error),)
        for problem in problems:
            click.echo(f"batchedapi: {file}: {problem}", err=True)
        sys.exit(2)
    except yaml.YAMLError as error:
        click.echo(f"batchedapi: {file}: expected YAML, got {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"batchedapi: {error}", err=True)
        sys.exit(2)
    told = [
        f"not taken over  {note.place}: {note.reason}; {note.remedy}" for note in migration.notes
    ]
    told += [
        f"to edit         {file.parent / name}:{line}: {wanted}"
        for name, line, wanted in migration.edits()
    ]
    click.echo(f"{file.parent}: {', '.join(written)}")
    if told:
        click.echo("\n" + "\n".join(told))
    click.echo(f"\n  batchedapi check -f {file.parent / MANIFEST}")
    click.echo(f"  batchedapi serve -f {file.parent / MANIFEST} --reload")


def _translator(project: Project) -> Callable[[Project], Migration]:
    """Who knows the language of the file.

    Raises:
        MigrateError: nobody.
    """
    from batchedapi_serving.migrating import (  # noqa: PLC0415 - every replica runs this program
        bentoml,
        cortex,
        kserve,
        torchserve,
        triton,
    )

    name = project.file
    if name.endswith(".pbtxt"):
        return triton.migrate
    if name.endswith(".properties"):
        return torchserve.migrate
    if name.endswith(".py"):
        return bentoml.migrate
    for document in yaml.safe_load_all(project.text):
        entries = document if isinstance(document, list) else [document]
        for entry in entries:
            if isinstance(entry, dict) and entry.get("kind") == "InferenceService":
                return kserve.migrate
            if isinstance(entry, dict) and "kind" in entry and "apiVersion" not in entry:
                return cortex.migrate
            if isinstance(entry, dict) and entry.keys() & {"runners", "services", "api_server"}:
                return bentoml.migrate
    raise MigrateError(
        "expected cortex.yaml, a BentoML configuration or service.py, config.pbtxt,"
        " config.properties or an InferenceService, found none of them"
    )


def _write(folder: Path, migration: Migration) -> list[str]:
    """Names of the files that are there now.

    Raises:
        MigrateError: one was there before; nothing is written.
    """
    manifest = yaml.safe_dump(dict(migration.manifest), sort_keys=False)
    files = {MANIFEST: manifest, **migration.files}
    for name in files:
        if (folder / name).exists():
            raise MigrateError(f"{folder / name} is there already: remove it, or rename it")
    for name, text in files.items():
        (folder / name).write_text(text)
    return list(files)
