"""Compiles the modules that a request passes, when a wheel is built that asks for it.

pyproject.toml lists them. mypyc makes C of them, by their types, and a C compiler makes modules of
that, which Python imports in place of the sources beside them. An editable installation has none:
what one edits is what runs.
"""

import os
import shlex
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution

# Nothing that happens to be installed changes what is compiled: the types of other packages are not
# read, and what comes from them is any object.
MYPY: Final = (
    "--config-file=",
    "--cache-dir=/dev/null",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--no-site-packages",
)


class CompiledModules(BuildHookInterface[BuilderConfig]):
    """See the module's text."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what comes of it to the wheel.

        Raises:
            RuntimeError: there is no C compiler.
        """
        if version == "editable":
            return
        command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        if shutil.which(shlex.split(command)[0]) is None:
            raise RuntimeError(
                f"a compiled wheel needs a C compiler, got no {command}: install gcc, or unset"
                " HATCH_BUILD_HOOK_ENABLE_CUSTOM for a wheel of plain Python"
            )
        self._folder = TemporaryDirectory()
        for module, place in compiled(Path(self.root), self.config["compiled"], self._folder.name):
            build_data["force_include"][str(module)] = place
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was only on its way into the wheel."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()


def compiled(
    root: Path, packages: Mapping[str, Sequence[str]], folder: str
) -> Iterator[tuple[Path, str]]:
    """Compiled modules, in `folder`, and their places in the wheel.

    `packages` are modules by the folder of their package; those that are not there are left out:
    the operator's image is built without the serving half.
    """
    paths = [root / package / f"{name}.py" for package, names in packages.items() for name in names]
    trees = {path.relative_to(root).parts[0] for path in paths}
    os.environ["MYPYPATH"] = os.pathsep.join(str(root / tree) for tree in sorted(trees))
    extensions = mypycify(
        [*MYPY, *(str(path) for path in paths if path.exists())],
        group_name="batchedapi",
        opt_level="3",
        debug_level="0",
        multi_file=True,
        target_dir=f"{folder}/c",
    )
    command = Distribution({"name": "batchedapi", "ext_modules": extensions}).get_command_obj(
        "build_ext"
    )
    command.build_lib, command.build_temp = f"{folder}/modules", f"{folder}/objects"
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()
    for module in map(Path, command.get_outputs()):
        yield module, str(module.relative_to(command.build_lib))
