"""`batchedapi check`: its options; what it does is in checking/ and cli/check_run.py."""

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from batchedapi_core.manifest import ManifestError, UnknownFields
from batchedapi_serving.checking.report import Wanted
from batchedapi_serving.cli.check_run import ItemsError, judge, load_items, run_check
from batchedapi_serving.cli.documents import (
    MANIFEST_PATH,
    DocumentError,
    Documents,
    load_documents,
    manifest_of,
)
from batchedapi_serving.errors import LoadError

BAD = 1
"""Exit code: answers depend on the batch, or a batch was not answered."""
NOT_CHECKED = 2
"""Exit code: the command line, the manifest or the items are wrong, the predictor does not start,
or nobody knows what it takes."""


@click.command("check")
@click.argument("predictor", required=False, metavar="[MODULE:CLASS]")
@click.option(
    "-f", "--file", "file", metavar="FILE",
    type=MANIFEST_PATH,
    help="A manifest: the file you would kubectl apply, ConfigMaps in it included.",
)  # fmt: skip
@click.option("--name", help="Which BatchedAPI of the file, if it holds several.")
@click.option(
    "--items", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rows to ask with: a JSON array, or one JSON value a line. [default: the method's"
    " example, or random arrays]",
)  # fmt: skip
@click.option(
    "--ignore", "ignored", metavar="NAME", multiple=True,
    help="Do not compare outputs, and members of JSON answers at any depth, of that name: ids and"
    " times that are new in each answer. May be given several times.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def check_command(
    *,
    predictor: str | None,
    file: Path | None,
    name: str | None,
    items: Path | None,
    ignored: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare batched answers with one-by-one answers, and time batches of each size.

    Starts the predictor of the manifest FILE, or the class MODULE:CLASS, without a server. Exit
    code 0: every answer is the same in any company; 1: it is not; 2: nothing could be checked.

    \b
    Examples:
      batchedapi check -f batchedapi.yaml
      batchedapi check model:Model --items rows.jsonl --ignore uuid --json
    """
    if (predictor is None) == (file is None):
        raise click.UsageError("give either -f FILE or MODULE:CLASS")
    try:
        if file is not None:
            documents = load_documents(file, name, UnknownFields.REFUSE)
        else:
            documents = Documents(manifest_of(predictor or ""), {}, Path.cwd())
        judged = judge(
            documents,
            run_check(documents, Wanted(None if items is None else load_items(items), ignored)),
        )
    except (DocumentError, ManifestError, ItemsError) as error:
        problems = error.problems if isinstance(error, ManifestError) else (str(error),)
        _give_up([f"{file or predictor}: {problem}" for problem in problems])
    except LoadError as error:
        _give_up([f"{error.reason}: {error}"])
    except OSError as error:
        _give_up([str(error)])
    text = judged.as_text()
    if as_json:
        text = json.dumps(judged.as_object(), indent=2) + "\n"
    click.echo(text, nl=False)
    sys.exit(BAD if not judged.report.good else 0 if judged.report.checked else NOT_CHECKED)


def _give_up(problems: list[str]) -> NoReturn:
    for problem in problems:
        click.echo(f"batchedapi: {problem}", err=True)
    sys.exit(NOT_CHECKED)
