"""`batchedapi migrate`: another server's configuration becomes a manifest, and maybe a class."""

import sys
from pathlib import Path
from typing import Final

import click

from batchedapi_serving.laptop.migrating.migration import MANIFEST, MigrateError, Migration, Project

_MOST_BYTES: Final = 1 << 20
"""Largest file beside it that is read: configuration is smaller."""


@click.command("migrate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def migrate_command(file: Path) -> None:
    """Write batchedapi.yaml, and a class to fill in, beside another server's FILE.

    FILE is cortex.yaml, bentoml_configuration.yaml or bentofile.yaml of BentoML, config.pbtxt of
    Triton, config.properties or model-config.yaml of TorchServe, model-settings.json of MLServer,
    or InferenceServices of KServe. A saved model that needs no class gets none.
    Code is not translated. Each key that is not taken over is listed with the reason and a remedy.
    Existing files are left as they are. Exit code 0: written; 2: FILE cannot be taken over, or a
    file is there already.

    \b
    Examples:
      batchedapi migrate cortex.yaml
      batchedapi migrate densenet/config.pbtxt
    """
    try:
        project = _project(file)
        migration = translation_of(project)
        _write(file.parent, migration)
    except (MigrateError, UnicodeDecodeError) as error:
        click.echo(f"batchedapi: {file}: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"batchedapi: {error}", err=True)
        sys.exit(2)
    click.echo(f"{file.parent}: {', '.join(migration.files)}\n")
    for note in migration.notes:
        click.echo(f"not taken over  {note.place}: {note.reason}; {note.remedy}")
    for name, line, wanted in migration.edits():
        click.echo(f"to edit         {file.parent / name}:{line}: {wanted}")
    chosen = f" --name {migration.names[0]}" if len(migration.names) > 1 else ""
    click.echo(f"\n  batchedapi check -f {file.parent / MANIFEST}{chosen}")
    click.echo(f"  batchedapi serve -f {file.parent / MANIFEST}{chosen} --reload")


def _project(file: Path) -> Project:
    folder = file.resolve().parent
    beside = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        small = path.suffix in {".yaml", ".yml"} and path.is_file()
        small = small and path.stat().st_size <= _MOST_BYTES
        name = f"{path.name}/" if path.is_dir() else path.name
        beside[name] = path.read_text("utf-8", "replace") if small else ""
    return Project(folder.name, file.name, file.read_text("utf-8-sig"), beside, folder.as_uri())


def translation_of(project: Project) -> Migration:
    """The manifest and class for a file of a kind that is known.

    Raises:
        MigrateError: it is not, or cannot be taken over.
    """
    from batchedapi_serving.laptop.migrating import (  # noqa: PLC0415 - every replica runs this program
        bentoml,
        cortex,
        kserve,
        mlserver,
        torchserve,
        triton,
    )  # fmt: skip

    name = project.file
    if name.endswith(".pbtxt"):
        return triton.migrate(project)
    if name.endswith(".properties") or name in torchserve.MODEL_CONFIG:
        return torchserve.migrate(project)
    if name == mlserver.MODEL_SETTINGS:
        return mlserver.migrate(project)
    if name.endswith((".yaml", ".yml", ".json")):
        for document in project.documents():
            if cortex.is_cortex(document):
                return cortex.migrate(project)
            if kserve.is_kserve(document):
                return kserve.migrate(project)
            if bentoml.is_bentoml(name, document):
                return bentoml.migrate(project)
    raise MigrateError(
        "expected cortex.yaml, bentoml_configuration.yaml, bentofile.yaml, config.pbtxt,"
        " config.properties, model-config.yaml, model-settings.json or an InferenceService; code is"
        " not translated:"
        " write the class by hand (`batchedapi init` has one to start from)"
    )


def _write(folder: Path, migration: Migration) -> None:
    """Write all files or none.

    Raises:
        MigrateError: one was there before.
    """
    for name in migration.files:
        if (folder / name).exists():
            raise MigrateError(f"{folder / name} is there already: remove it, or rename it")
    for name, text in migration.files.items():
        (folder / name).write_text(text)
