"""Answers of user code, generated: one model process, whose other clients must not notice.

python tests/fuzz/answers.py --runs 10000 --write plain.json
PYTHONPATH=.cache/compiled python tests/fuzz/answers.py --runs 10000 --compare plain.json
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from batchedapi_core import COMPILED
from batchedapi_core.batching import Strategy
from batchedapi_serving.settings import BatchingSettings
from model_process import ModelProcess, web

METHODS: Final = ("items", "whole", "tensor", "decoded", "encoded", "call", "later")
AT_ONCE: Final = len(METHODS)
"""One of each: what answers for all rows of a batch would answer for another odd one, too."""
CODE: Final = (Path(__file__).parents[1] / "support" / "odd_answers.py").read_text()


async def answers_of(runs: int, log: Path) -> dict[str, list[Any]]:
    """Status and body of each odd request; of those that are answered in any way.

    Raises:
        AssertionError: a neighbour was hurt, or the process was lost.
    """
    found: dict[str, list[Any]] = {}
    batching = BatchingSettings(batch_interval=0.002, strategy=Strategy.WINDOW)
    process = ModelProcess(CODE, log, threads=1, batching=batching)
    try:
        async with web(process) as front:
            for first in range(0, runs, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, runs))
                odd, good = {}, {}
                for number in numbers:
                    method = METHODS[number % len(METHODS)]
                    row = [number, 1] if method == "tensor" else {"odd": number}
                    odd[number] = front.ask(method, row)
                    # Of these the odd one answers for all rows, which may be as many by chance.
                    beside = "items" if method in {"whole", "tensor"} else method
                    good[number] = front.ask(beside, {"good": number})
                for number, one in odd.items():
                    answer = await one.answer()
                    found[str(number)] = [answer.status, answer.body.decode("latin-1")]
                for number, one in good.items():
                    answer = await one.answer()
                    assert (200, float(number + 1)) == (answer.status, float(answer.body)), number
                assert process.process.poll() is None, f"lost by one of {numbers}"
            assert [] == front.replaced
    finally:
        process.close()
    return found


def main() -> int:
    """The command line; 1: plain and compiled differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--write", type=Path, help="for --compare")
    parser.add_argument("--compare", type=Path, help="answers of another run of as many")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(answers_of(chosen.runs, Path(folder) / "log"))
    statuses: dict[int, int] = {}
    for status, _ in found.values():
        statuses[status] = statuses.get(status, 0) + 1
    told = f"{len(found)} odd answers, {'compiled' if COMPILED else 'plain'}: {statuses}"
    print(f"{told}; no process lost, no neighbour hurt")
    if chosen.write is not None:
        chosen.write.write_text(json.dumps(found))
    if chosen.compare is None:
        return 0
    before = json.loads(chosen.compare.read_text())
    other = {number for number in found if found[number] != before[number]}
    for number in sorted(other, key=int)[:20]:
        print(number, METHODS[int(number) % len(METHODS)], before[number], found[number])
    print(f"{len(other)} answers differ")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
