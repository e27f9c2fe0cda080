"""The surroundings of a replica: descriptors, variables, files beside the model, a full disk."""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from raw_http import ask
from serving import PROGRAM, end_replica, running_replica, start_replica, write_manifest

CODE = """
    from batchedapi_serving import batched

    class Model:
        @batched(example=1)
        def predict(self, items):
            return items
"""
CLOSED = [("<&-",), (">&-",), ("2>&-",), ("<&-", ">&-", "2>&-")]


def in_folder(folder: Path, code: str = CODE) -> None:
    """Write it as a model.py."""
    (folder / "model.py").write_text(textwrap.dedent(code))


def starter(folder: Path, redirections: str) -> Path:
    """A program that starts ours as a shell does."""
    path = folder / "start"
    path.write_text(f'#!/bin/sh\nexec {PROGRAM} "$@" {redirections}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("closed", CLOSED, ids="".join)
async def test_descriptors_that_were_closed_before_the_start_are_no_sockets(
    tmp_path: Path, closed: tuple[str, ...]
) -> None:
    """Else the listener gets the number of the log, and each line of it goes to some client."""
    in_folder(tmp_path)
    program = starter(tmp_path, " ".join(closed))

    with running_replica(tmp_path, ["model:Model"], program=program) as replica:
        links = {
            link for pid in (replica.pid, *replica.children()) for link in standard_descriptors(pid)
        }

        assert (await ask(replica.port, 5)).json() == 5
        assert not [link for link in links if link.startswith(("socket:", "pipe:"))]
        assert replica.stop() == 0


def standard_descriptors(pid: int) -> list[str]:
    """The targets of descriptors 0, 1 and 2 of a process."""
    return [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]


def test_what_is_printed_is_in_the_log_before_the_process_ends(tmp_path: Path) -> None:
    """Standard output is no terminal in CI or behind a pipe, and the end is a SIGKILL."""
    code = """
        import ctypes, os, sys
        from batchedapi_serving import batched
        print("imported")

        class Model:
            @batched(example="x")
            def predict(self, items):
                print("printed", items[0])
                sys.stdout.write("\\N{SNOWMAN} written\\n")
                sys.stdout.buffer.write(b"as bytes\\n")
                ctypes.CDLL(None).puts(b"by the C library")
                os.write(1, b"by the system\\n")
                return items
    """
    in_folder(tmp_path, code)
    environment = {"PYTHONUNBUFFERED": "", "PYTHONIOENCODING": "ascii"}
    with running_replica(tmp_path, ["model:Model"], environment) as replica:
        lines = replica.text().splitlines()

        expected = ["imported", "printed x", "\\u2603 written", "as bytes", "by the C library"]
        assert [*expected, "by the system"] == [one for one in lines if not one.startswith("{")][:6]


NAMES = ("types", "token", "logging", "random", "queue", "signal", "json", "socket", "re", "ssl")


async def test_files_beside_the_model_are_no_modules_of_pythons(tmp_path: Path) -> None:
    """Whoever has a queue.py wants to serve a model, and nothing of ours must import it."""
    in_folder(tmp_path, f"import helper\n{textwrap.dedent(CODE)}")
    (tmp_path / "helper.py").write_text("")
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise AssertionError('imported')\n")

    with running_replica(tmp_path, ["model:Model"]) as replica:
        assert (await ask(replica.port, 5)).json() == 5

    command = [PROGRAM, "check", "model:Model"]
    checked = await asyncio.create_subprocess_exec(*command, cwd=tmp_path)
    assert await checked.wait() == 0


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("token.py", f"from token import special\n{textwrap.dedent(CODE)}"),
        ("token.py", f"import token\ntoken.special\n{textwrap.dedent(CODE)}"),
        ("queue.py", ""),
    ],
)
def test_a_file_that_is_hidden_by_pythons_library_is_named(
    tmp_path: Path, file: str, code: str
) -> None:
    """Else one looks for the mistake in a file that nobody has read."""
    in_folder(tmp_path, code)
    (tmp_path / file).write_text("special = 1\n")
    replica = start_replica(tmp_path, [f"{'queue' if file == 'queue.py' else 'model'}:Model"])
    try:
        assert replica.process.wait(30) == 1
        last = replica.text().splitlines()[-1]
        assert "ImportFailed" in last
        assert f"{tmp_path / file} is not imported, as Python's library has a" in last
    finally:
        end_replica(replica)


async def test_user_code_gets_none_of_our_arguments(tmp_path: Path) -> None:
    """A script with argparse at its top would take them for its own."""
    code = f"""
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--rate", default=0.1)
        arguments = parser.parse_args()
        assert sys.argv == [__file__]
        {CODE}
    """
    (tmp_path / "model.py").write_text(
        textwrap.dedent(code.partition(CODE)[0]) + textwrap.dedent(CODE)
    )

    with running_replica(tmp_path, ["model:Model"]) as replica:
        assert (await ask(replica.port, 5)).status == 200


VARIABLES = {
    "optimized, debugged, elsewhere, tuned, proxied": {
        "PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSTARTUP": "/nowhere", "PYTHONBREAKPOINT": "0",
        "TZ": "Nowhere/Never", "HOME": "/nowhere", "PYTHONNOUSERSITE": "1",
        "MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165", "PYTHONINTMAXSTRDIGITS": "640",
        "http_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9",
    },
    "developed, without locale, traced": {
        "PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1", "PYTHONMALLOC": "debug",
        "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
        "PYTHONFAULTHANDLER": "1", "PYTHONHASHSEED": "0", "PYTHONPROFILEIMPORTTIME": "1",
    },
    "warned, latin, safe": {
        "PYTHONWARNINGS": "error",
        "LC_ALL": "de_DE.ISO-8859-1", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0",
        "PYTHONSAFEPATH": "1", "PYTHONPYCACHEPREFIX": "/proc/nowhere", "PYTHONUNBUFFERED": "1",
    },
}  # fmt: skip
"""Variables that do not touch each other are set together: each start takes seconds."""


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=VARIABLES)
async def test_variables_that_python_reads_change_nothing(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """Images and shells set them for other programs."""
    code = CODE.replace("return items", 'return ["\\N{SNOWMAN}"] * len(items)')
    manifest = write_manifest(tmp_path, code, {})

    with running_replica(tmp_path, ["-f", str(manifest)], variables) as replica:
        assert (await ask(replica.port, "\N{SNOWMAN}")).json() == "\N{SNOWMAN}"
        assert replica.stop() == 0


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 4 MiB, with a name so short that Unix sockets can be in it."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


async def test_a_full_disk_ends_no_process(tmp_path: Path, small_disk: Path) -> None:
    """Neither the log nor what a predictor prints or measures is worth an answer."""
    code = """
        from batchedapi_serving import batched

        class Model:
            def __init__(self, config, context):
                self.seen = context.metrics.counter("seen", "Rows.")

            @batched(example=1)
            def predict(self, items):
                print("x" * 100)
                if items == ["fail"]:
                    raise ValueError("told in the log")
                self.seen.inc()
                return items
    """
    in_folder(tmp_path, code)
    program = starter(tmp_path, f">{small_disk}/log 2>&1")
    variables = {"TMPDIR": str(small_disk)}
    with running_replica(tmp_path, ["model:Model"], variables, program=program) as replica:
        pids = replica.children()
        fill(small_disk / "filler")

        answers = [await ask(replica.port, i) for i in range(50)]
        failed = await ask(replica.port, "fail")

        assert {200} == {answer.status for answer in answers}
        assert failed.status == 500
        assert pids == replica.children()
        assert replica.admin("/metrics")[0] == 200
        assert replica.stop() == 0


def fill(file: Path) -> None:
    """Write to it until there is no room."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
