"""Program of a model process; started by the supervisor, not by hand.

Arguments: the runtime folder and this process's index.
"""

import os
import sys

from batchedapi_serving.logs import configure_logging
from batchedapi_serving.model.process import run_model
from batchedapi_serving.processes import give_way_for_memory, kill_with_parent
from batchedapi_serving.settings import ReplicaSettings


def main(runtime: str, index: str) -> None:
    """Serve until ended."""
    kill_with_parent()
    give_way_for_memory()
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, f"model-{index}")
    code = run_model(settings, int(index))
    sys.stdout.flush()
    os._exit(code)  # user code may have left threads that never end


if __name__ == "__main__":
    main(*sys.argv[1:])
