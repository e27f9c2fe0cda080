"""Brings the model that `predictor.model.uri` names to this replica, before user code starts.

    location ── what a URI means                    pure
    digest   ── sha256 of a file or a folder
    web, bucket ── downloads: https and s3
    fetch    ── retries, digest, the path that the predictor is told

A process of its own runs it once per replica: `python -m batchedapi_serving.model_source RUNTIME`.
"""

from typing import Final

FETCH: Final = -1
"""In place of a worker index in the name of the failure file."""
