"""Write the protobuf classes of the gRPC protocol, or say that they are out of date.

python crds/generate_grpc.py           # make generate
python crds/generate_grpc.py --check   # make verify

Nothing of the serving half is imported: the classes can be made while that does not import.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The path above makes this file runnable as a program from anywhere.
from crds.generate import differences  # noqa: E402 - found only with the path above

FOLDER: Final = "serving/batchedapi_serving/codecs"
PROTO: Final = "open_inference.proto"
_CLASSES: Final = "open_inference_pb2.py"
_TYPES: Final = "open_inference_pb2.pyi"
_SHARED_POOL: Final = "_descriptor_pool.Default()"
_OWN_POOL: Final = "_descriptor_pool.DescriptorPool()"


def generated_files(root: Path = ROOT) -> dict[str, str]:
    """Content of both generated files by path below the repository's root.

    Raises:
        RuntimeError: protoc refused the file, or writes another kind of code than is expected.
    """
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{root / FOLDER}",
            f"--python_out={out}", f"--pyi_out={out}", str(root / FOLDER / PROTO),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - arguments are ours
        if done.returncode:
            raise RuntimeError(f"{PROTO}: protoc failed: {done.stderr.strip()}")
        classes = (Path(out) / _CLASSES).read_text(encoding="utf-8")
        types = (Path(out) / _TYPES).read_text(encoding="utf-8")
    return {f"{FOLDER}/{_CLASSES}": _with_own_pool(classes), f"{FOLDER}/{_TYPES}": types}


def _with_own_pool(classes: str) -> str:
    """Take the classes out of protobuf's process-wide registry of names.

    Every client library of this protocol registers `inference.ModelInferRequest` there, from a file
    of another name, and protobuf refuses the second: importing one beside us would fail.
    """
    if classes.count(_SHARED_POOL) != 1:
        raise RuntimeError(
            f"{_CLASSES}: expected one {_SHARED_POOL}, got {classes.count(_SHARED_POOL)};"
            " protoc has changed, look at what it writes now"
        )
    return classes.replace(_SHARED_POOL, _OWN_POOL)


def main(arguments: list[str]) -> int:
    """Exit code: 0 = written, or nothing differs; 1 = `--check` found a difference."""
    files = generated_files()
    if arguments == ["--check"]:
        summaries = differences(ROOT, files)
        sys.stderr.writelines(f"{summary}\n\n" for summary in summaries)
        return 1 if summaries else 0
    for name, content in files.items():
        (ROOT / name).write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
