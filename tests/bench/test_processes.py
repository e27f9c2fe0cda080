"""CPU time of whole servers."""

import os
import subprocess
import sys
import time

from harness.processes import cpu_seconds, tree_of

NESTED = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "sum(range(10**7)); input()"], start_new_session=True):
    pass
"""


def test_all_that_descend_from_a_server_are_counted() -> None:
    """Model processes have sessions of their own, and threads start them."""
    command = [sys.executable, "-c", NESTED]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
        while len(pids := tree_of(started.pid)) < 2 or cpu_seconds(pids[1:]) < 0.1:
            assert started.poll() is None
            time.sleep(0.02)

        own = tree_of(os.getpid())
        started.communicate(b"\n")

    assert 2 == len(pids)
    assert {os.getpid(), *pids} <= set(own)
