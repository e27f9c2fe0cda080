"""In which thread user code runs, from its import to its batches: on replicas as they are."""

import subprocess
from pathlib import Path
from typing import Any

from raw_http import ask
from serving import PROGRAM, running_replica, write_manifest

BOUND = """
    import decimal
    import signal
    import sqlite3
    import threading

    from batchedapi_serving import batched, endpoint

    IMPORTED = threading.current_thread()

    class Model:
        def __init__(self, context):
            self.context = context
            self.made = threading.current_thread()
            self.table = sqlite3.connect(":memory:")
            self.table.execute("create table t (k integer, v text)")
            self.table.execute("insert into t values (1, 'one')")
            self.own = threading.local()
            self.own.value = "own"
            decimal.getcontext().prec = 50

        def here(self):
            return threading.current_thread() is self.made is IMPORTED

        @batched(example=1)
        def predict(self, items):
            rows = self.table.execute("select v from t where k = 1").fetchall()
            return [[rows[0][0], self.own.value, self.here()] for _ in items]

        @endpoint
        def timed(self, payload):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # and after the batch, when nobody waits
            return payload

        @endpoint
        def main(self, payload):
            return threading.current_thread() is threading.main_thread() and self.here()

        @batched(example=1)
        async def beside(self, items):
            third = str(decimal.Decimal(1) / 3)
            return [[*row, third] for row in await self.context.submit("predict", items)]
"""
SEVERAL = """
    import decimal
    import threading

    from batchedapi_serving import batched, endpoint

    WARMED = []

    class Model:
        def __init__(self, context):
            self.context = context
            self.made = threading.current_thread() is threading.main_thread()
            decimal.getcontext().prec = 50

        @batched(example=1, max_batch_size=1)
        def predict(self, items):
            WARMED.append(threading.get_ident())
            assert threading.current_thread() is not threading.main_thread()
            return [str(decimal.Decimal(1) / 3) for _ in items]

        @batched(example=1, max_batch_size=1)
        async def beside(self, items):
            return await self.context.submit("predict", items)

        @endpoint
        def state(self, payload):
            return [self.made, len(set(WARMED))]
"""
THIRD = "0." + 50 * "3"


async def test_one_thread_runs_all_there_is_of_a_class(tmp_path: Path) -> None:
    """Else what belongs to a thread passes the warm-up, and fails for every client."""
    manifest = write_manifest(tmp_path, BOUND, {"predictor": {"path": "model:Model"}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        answers: dict[str, Any] = {}
        for path in ("/predict", "/api/main", "/api/beside", "/api/timed", "/api/timed"):
            answers[path] = (await ask(replica.port, 1, path)).json()
        replica.wait_for(lambda: "a handler of signals raised" in replica.text(), "no late alarm")
        after = await ask(replica.port, 1)
        restarts = replica.metrics()["batchedapi_process_restarts_total{role=model}"]

    bound = ["one", "own", True]
    assert answers == {
        "/predict": bound, "/api/main": True, "/api/timed": 1, "/api/beside": [*bound, THIRD],
    }  # fmt: skip
    assert (bound, 0) == (after.json(), restarts)


def test_check_runs_a_class_in_the_same_thread(tmp_path: Path) -> None:
    """It says before a deployment what a replica would do."""
    manifest = write_manifest(tmp_path, BOUND, {})

    checked = subprocess.run(
        [str(PROGRAM), "check", "-f", str(manifest)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert (0, False) == (checked.returncode, "WRONG" in checked.stdout), checked.stderr


async def test_several_threads_are_all_warmed_up(tmp_path: Path) -> None:
    """Each has its own copy of what a library keeps for a thread; none of them is the first."""
    manifest = write_manifest(tmp_path, SEVERAL, {"predictor": {"threadsPerProcess": 3}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        state = await ask(replica.port, 1, "/api/state")
        answers = [
            (await ask(replica.port, 1, f"/api/{name}")).json() for name in ("predict", "beside")
        ]

    assert [True, 3] == state.json()
    assert [THIRD] * 2 == answers
