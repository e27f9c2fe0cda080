"""The objects that the operator makes of a BatchedAPI; one kind a file, every builder pure."""

from batchedapi_operator.resources.configmap import Revision, build_config_map, revision_of
from batchedapi_operator.resources.deployment import build_deployment, build_service, url
from batchedapi_operator.resources.setting import Running

__all__ = [
    "Revision",
    "Running",
    "build_config_map",
    "build_deployment",
    "build_service",
    "revision_of",
    "url",
]
