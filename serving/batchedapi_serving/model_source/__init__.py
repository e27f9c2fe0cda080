"""Brings the model that `predictor.model.uri` names to this replica, before user code starts.

    __main__ ── what a URI means, retries, the digest, the path that the predictor is told
    https, bucket, hub, registry ── sources: which files, and how a part of one is read
    download ── the files' way to disk, whatever their source
    shelf ── models that are whole, for this replica or for all that share the folder

A process of its own runs it once per replica: `python -m batchedapi_serving.model_source RUNTIME`.
"""

from typing import Final

FETCH: Final = -1
"""In place of a worker index in the name of the failure file."""
