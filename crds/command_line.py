"""docs/reference/command-line.md: every command of both programs, options and environment."""

from collections.abc import Iterator
from typing import Final

import click

from batchedapi_core import contract
from batchedapi_operator.plugin.__main__ import main as plugin
from batchedapi_serving.cli.main import main
from batchedapi_serving.logs import LOG_FORMAT
from crds.markdown import HEADER, code, table

_ORDER: Final = (
    "A flag beats the manifest, and the manifest beats the decorators in the code. The environment"
    " fills what the manifest does not say; in a cluster the API server has then written defaults"
    f" into it, so that {code(contract.ENV_BATCH_TIME)} does nothing there.\n"
)
_ENVIRONMENT: Final = (
    (contract.ENV_BATCH_SIZE, "maxBatchSize: rows, or requests, of one batch at most."),
    (contract.ENV_BATCH_TIME, "batchInterval, in seconds: `0.01`."),
    (
        contract.ENV_REDIS_HOST,
        "queue.redis.host. The environment alone turns no queue on: the manifest does, or a role.",
    ),
    (contract.ENV_REDIS_PORT, "queue.redis.port."),
    (contract.ENV_REDIS_DB, "queue.redis.db."),
    (contract.ENV_REDIS_USERNAME, "User's name; in a cluster from queue.redis.usernameSecret."),
    (contract.ENV_REDIS_PASSWORD, "Password; in a cluster from queue.redis.passwordSecret."),
    (
        contract.ENV_CPU_REQUEST,
        "CPUs for `processesPerReplica: cpu_count` without a CPU limit; set by the operator.",
    ),
    (
        contract.ENV_SOURCES,
        "ConfigMaps and Secrets of `predictor.envFrom`; set by the operator.",
    ),
    (contract.ENV_COMPARE, "`updateStrategy.compare`, and who may ask; set by the operator."),
    (LOG_FORMAT, "`json` or `text`; without it text on a terminal, else JSON."),
    (
        "CUDA_VISIBLE_DEVICES",
        "GPUs of the replica, which are then shared out among its model processes.",
    ),
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Collector of [traces](../guides/looking.md#traces); also in `predictor.env`.",
    ),
)

_ARGUMENTS: Final = {
    "predictor": "The class, where there is no manifest: everything has its default.",
    "folder": "Is made, if it is not there; the last part of its path is the API's name.",
    "file": "Configuration of another server; its folder is the project.",
    "shell": "Shell that completes.",
    "name": "Name of the BatchedAPI.",
}


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """Commands of a program by name, sorted."""
    context = click.Context(group)
    return {
        name: command
        for name in sorted(group.list_commands(context))
        if (command := group.get_command(context, name)) is not None
    }


def page() -> str:
    """The whole page."""
    commands = [
        part
        for name, command in commands_of(main).items()
        for part in _command(f"batchedapi {name}", command)
    ]
    of_plugin = [
        part
        for name, command in commands_of(plugin).items()
        for part in _command(f"kubectl batchedapi {name}", command)
    ]
    rows = ((code(name), meaning) for name, meaning in _ENVIRONMENT)
    return "\n".join(
        (
            f"{HEADER}# The command line\n",
            *commands,
            "## Environment of `batchedapi serve`\n",
            _ORDER,
            table(("variable", "meaning"), rows),
            *of_plugin,
        )
    )


_TEST_OF_EXAMPLES = "tests/unit/test_help.py::test_every_help_has_an_example_that_is_understood"


def _command(written: str, command: click.Command) -> Iterator[str]:
    yield f"## `{written}`\n"
    text, _, examples = (command.help or "").partition("\b")
    yield f"{' '.join(text.split())}\n"
    if examples:
        lines = [line.strip() for line in examples.strip().splitlines()[1:]]
        yield f"<!-- read by {_TEST_OF_EXAMPLES} -->"
        yield "```sh\n" + "\n".join(lines) + "\n```\n"
    yield table(("option", "meaning"), _options(command))


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    context = click.Context(command)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = parameter.make_metavar(context).strip("[]{}")
            yield code(name), _ARGUMENTS[parameter.name or ""]
        else:
            record = parameter.get_help_record(context)
            if record is not None:
                yield code(record[0]), record[1]
