"""Program that fetches the model; started by the supervisor, not by hand.

Argument: the runtime folder. The path of the model is written into its settings.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Final

from batchedapi_serving.errors import LoadError
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.model_source import FETCH
from batchedapi_serving.model_source.fetch import fetch_model
from batchedapi_serving.processes import kill_with_parent
from batchedapi_serving.settings import ReplicaSettings

_FOLDER: Final = "model"


def main(runtime: str) -> int:
    """Fetch; the exit code is 1 when there is a failure file to read."""
    kill_with_parent()
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, "model-source")
    if settings.model_uri is None:
        return 0
    here = Path(settings.search[0]) if settings.search else Path.cwd()
    try:
        path = fetch_model(
            settings.model_uri, settings.model_sha256, here=here, folder=Path(runtime) / _FOLDER
        )
    except LoadError as error:
        failure = {"reason": error.reason, "message": str(error)}
        settings.failure_path(FETCH).write_text(json.dumps(failure))
        return 1
    dataclasses.replace(settings, model_path=str(path)).write()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
