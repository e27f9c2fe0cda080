"""The program and its commands, each imported when it is run."""

import sys
from importlib import import_module
from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from batchedapi_core import COMPILED

_COMPLETERS: Final = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
_MODULES: Final = {
    "check": "check", "init": "init", "migrate": "migrate", "serve": "serving",
    "simulate": "simulate", "tune": "tune", "web": "serving", "worker": "serving",
}  # fmt: skip
"""Where each command is, in this folder: the start of a replica imports none of the others."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*_MODULES, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of a name; None: there is none."""
        if cmd_name in _MODULES:
            try:
                module = import_module(f"batchedapi_serving.cli.{_MODULES[cmd_name]}")
            except (OSError, MemoryError) as error:  # of the machine: no matter of a stack trace
                sys.exit(f"batchedapi: the command {cmd_name} could not be imported: {error!r}")
            command: click.Command = getattr(module, f"{cmd_name}_command")
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="batchedapi",
    prog_name="batchedapi",
    message=f"%(prog)s, version %(version)s{' (compiled)' if COMPILED else ''}",
)
def main() -> None:
    """Serve a model over HTTP in batches.

    \b
    Examples:
      batchedapi init prices
      batchedapi serve -f prices/batchedapi.yaml
    """


@main.command("completion")
@click.argument("shell", type=click.Choice(sorted(_COMPLETERS)))
def completion_command(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and files.

    \b
    Examples:
      source <(batchedapi completion bash)
      batchedapi completion fish > ~/.config/fish/completions/batchedapi.fish
    """
    completer = _COMPLETERS[shell](main, {}, "batchedapi", "_BATCHEDAPI_COMPLETE")
    click.echo(completer.source())
