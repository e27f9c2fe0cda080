"""docs/guides/manifests.md shows what is really printed."""

import re
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from batchedapi_serving.cli.main import main

ROOT: Final = Path(__file__).resolve().parents[4]
BLOCKS: Final = re.findall(
    r"```console\n\$ batchedapi (.+?)\n(.+?)```",
    (ROOT / "docs/guides/manifests.md").read_text(),
    re.DOTALL,
)
FILES: Final = {
    "iris.yaml": """
apiVersion: batchedapi.dev/v1alpha1
kind: BatchedAPI
metadata: {name: iris}
spec:
  predictor: {path: "model:Iris", workers: 4}
  serverSideBatching: {max_batch_size: 32, batchInterval: 0.1}
  autoscaling: {mode: Off}
sepc: {}
""",
    "cortex.yaml": """
- name: iris
  kind: RealtimeAPI
  predictor:
    type: python
    path: predictor.py
    processes_per_replica: 2
    server_side_batching: {max_batch_size: 32, batch_interval: 0.1}
  networking: {api_gateway: public}
""",
}


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_the_errors_of_the_guide_are_those_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, shown: str
) -> None:
    """ServedMethod by line, in order; three dots stand for lines that are left out."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    result = CliRunner().invoke(main, command.split())

    assert result.exit_code == 2
    rest = result.output
    for part in shown.split("...\n"):
        _, found, rest = rest.partition(part)
        assert found, f"{part} is not in {result.output}"


def test_both_commands_of_the_guide_are_tried() -> None:
    """A block that is written otherwise would be tried by nobody."""
    assert ["serve -f iris.yaml", "serve -f cortex.yaml"] == [command for command, _ in BLOCKS]
