"""`batchedapi check`: the exit code for a pipeline, the table for people."""

import json
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving import PROGRAM, write_manifest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GOOD = """
    import numpy as np
    from batchedapi_serving import Tensor, batched

    class Model:
        def __init__(self, config, context):
            print("user code prints")
            self.context = context
            self.weights = np.random.default_rng(0).standard_normal((16, 4)).astype("f4")

        @batched(inputs=Tensor("FP32", [16]), outputs=Tensor("FP32", [4]), max_batch_size=8)
        def predict(self, x):
            return x @ self.weights
"""


def check(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run(
        [str(PROGRAM), "check", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def check_code(
    folder: Path, code: str, spec: dict[str, Any], arguments: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Check a manifest with that code."""
    return check(folder, "-f", str(write_manifest(folder, code, spec)), *arguments)


def test_a_model_that_may_be_batched_exits_0_with_its_table(tmp_path: Path) -> None:
    """C28: every size up to the maximum, and the line through them."""
    done = check_code(tmp_path, GOOD, {})

    assert done.returncode == 0, done.stderr
    assert "ok     32 rows" in done.stdout
    assert "t(n) = " in done.stdout
    sizes = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("#")]
    assert ["1", "2", "4", "8"] == sizes
    assert "user code prints" not in done.stdout


def test_a_model_that_mixes_rows_exits_1(tmp_path: Path) -> None:
    """C28: normalized over the batch, as in training."""
    done = check_code(tmp_path, GOOD.replace("x @", "(x - x.mean(axis=0)) @"), {})

    assert done.returncode == 1
    assert "WRONG  row 0 in a batch of 8 is answered differently than alone" in done.stdout


PADDED = """
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(
            inputs=Tensor("INT64", ["tokens"], pad=0),
            outputs=Tensor("FP32", []),
            max_batch_size=8,
        )
        def predict(self, ids, attention_mask):
            return (ids * attention_mask).sum(axis=1) / attention_mask.sum(axis=1)
"""
_MEAN = "(ids * attention_mask).sum(axis=1) / attention_mask.sum(axis=1)"


def test_padding_that_changes_no_answer_is_seen_to_be_safe(tmp_path: Path) -> None:
    """The mask says which numbers count."""
    done = check_code(tmp_path, PADDED, {})

    assert done.returncode == 0, done.stdout
    assert "ok     32 rows" in done.stdout


@pytest.mark.parametrize(
    ("code", "spec", "warned"),
    [
        (PADDED, {}, ""),
        (
            PADDED.replace(", pad=0", ""),
            {"serverSideBatching": {"shapePolicy": "Pad"}},
            "shapePolicy: removed, and refused by the next release; leave it out, and instead",
        ),
    ],
    ids=["pad", "the field before it"],
)
def test_padding_that_changes_answers_is_told_with_row_and_distance(
    tmp_path: Path, code: str, spec: dict[str, Any], warned: str
) -> None:
    """A mean over what rows are filled up with: the one that is filled up is the wrong one."""
    done = check_code(tmp_path, code.replace(_MEAN, "ids.mean(axis=1)"), spec)

    assert done.returncode == 1, done.stdout
    told = (
        "WRONG  row 30 in a batch of row 30 and the longer row 1 is answered differently than"
        " alone: output:"
    )
    assert told in done.stdout
    assert warned in done.stderr


def test_a_target_that_full_batches_miss_is_said(tmp_path: Path) -> None:
    """C30: in words, and for programs."""
    slow = GOOD.replace("return x", "import time; time.sleep(0.02 * len(x)); return x")
    spec = {"serverSideBatching": {"maxLatency": "100ms"}}

    report = json.loads(check_code(tmp_path, slow, spec, ["--json"]).stdout)

    (method,) = report["methods"]
    advice = " ".join(advice["text"] for advice in method["advice"])
    assert report["good"]
    assert "a full batch takes" in advice
    assert "more than maxLatency 100ms: set maxBatchSize: 2" in advice
    assert "batching buys next to nothing" in advice
    assert [1, 2, 4, 8] == [timing["rows"] for timing in method["timings"]]


def test_items_are_asked_with(tmp_path: Path) -> None:
    """One JSON value a line; a method for items without an example needs them."""
    code = """
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context): ...

        @batched
        def predict(self, items):
            return [len(item["text"]) for item in items]
    """
    (tmp_path / "items.jsonl").write_text('{"text": "a"}\n{"text": "bcd"}\n')

    without = check_code(tmp_path, code, {})
    given = check_code(tmp_path, code, {}, ["--items", "items.jsonl"])

    assert (2, 0) == (without.returncode, given.returncode), given.stderr
    assert "--items FILE" in without.stdout
    assert "2 rows (the items given)" in given.stdout


def test_what_is_new_in_each_answer_is_ignored_by_its_name(tmp_path: Path) -> None:
    """An example of ours gives each item a name of its own."""
    file = str(EXAMPLES / "05-json-items/batchedapi.yaml")

    told = check(tmp_path, "-f", file)
    ignoring = check(tmp_path, "-f", file, "--ignore", "name")

    assert (1, 0) == (told.returncode, ignoring.returncode), ignoring.stdout
    assert "answer.name: expected" in told.stdout
    assert "left out with --ignore NAME" in told.stdout


def test_on_a_terminal_it_says_what_it_does(tmp_path: Path) -> None:
    """A large model takes a while; into a file goes nothing of it."""
    manifest = write_manifest(tmp_path, GOOD, {})
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [str(PROGRAM), "check", "-f", str(manifest)],
        stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=True,
    )  # fmt: skip
    os.close(theirs)
    said = os.read(ours, 1 << 20).decode()
    os.close(ours)

    assert "predict: comparing 32 rows alone and in batches" in said
    assert "predict: timing batches of 8 of at most 8 rows" in said
    assert said.endswith("\r\x1b[K")
    assert b"timing" not in done.stdout
    assert "timing" not in check_code(tmp_path, GOOD, {}).stderr


def test_methods_that_submit_to_one_another_are_checked(tmp_path: Path) -> None:
    """N28: without a server there is no queue; the other method answers at once."""
    code = """
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.context = context

        @batched(example=2)
        def double(self, items):
            return [2 * item for item in items]

        @batched(example=1)
        async def predict(self, items):
            return await self.context.submit("double", items)
    """
    done = check_code(tmp_path, code, {})

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  ok  ") == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_installed_at_all", "ImportFailed"),
        (GOOD.replace("x @", "x[:1] @"), "ShapeProbeFailed"),
        ("import os; os._exit(3)", "the process with the predictor was ended with exit code 3"),
    ],
    ids=["import", "shape", "exit"],
)
def test_a_model_that_does_not_start_exits_2(tmp_path: Path, code: str, message: str) -> None:
    """It could not be checked; what serve would say is said."""
    done = check_code(tmp_path, code, {})

    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either -f FILE, MODULE:CLASS or MODEL"),
        (["no-colon"], "expected module:Class"),
        (["m:M", "--items", "bad.jsonl"], "line 2: expected JSON"),
        (["m:M", "--items", "empty.json"], "expected a JSON array"),
    ],
)
def test_a_wrong_command_line_exits_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """With one line and no traceback."""
    (tmp_path / "bad.jsonl").write_text("1\n{\n")
    (tmp_path / "empty.json").write_text("[]")

    done = check(tmp_path, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


MARKED = GOOD.replace("import Tensor, batched", "import Tensor, batched, fork_safe").replace(
    "    class Model:", "    @fork_safe\n    class Model:"
)
RANDOM = """self.context = context
            import os
            os.register_at_fork(after_in_child=lambda: self.weights.fill(0))"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (MARKED, "note: all processes share one copy of the model"),
        (GOOD, "note: a fork answers the same, so 2 processes could share one copy of the model"),
        (
            MARKED.replace("self.context = context", RANDOM),
            "warning: @fork_safe: each process has a model of its own: a fork answers otherwise:",
        ),
        (GOOD.replace("self.context = context", RANDOM), ""),
    ],
    ids=["shared", "could be", "not what it was", "nothing was asked for"],
)
def test_a_check_says_whether_processes_share_the_model(
    tmp_path: Path, code: str, said: str
) -> None:
    """By the answers of a fork."""
    done = check_code(tmp_path, code, {"predictor": {"processesPerReplica": 2}})

    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert bool(said) == ("fork" in done.stdout or "share" in done.stdout)
