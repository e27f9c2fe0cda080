"""The Service in front of the replicas: the API's name, port 80."""

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.keys import SERVICES, JsonObject
from batchedapi_operator.resources.names import head, selector_labels


def build_service(api: BatchedAPI) -> JsonObject:
    """A ClusterIP Service; the address is the apiserver's to choose."""
    body = head(api, SERVICES, api.metadata.name)
    ports: list[JsonObject] = [
        {
            "name": contract.HTTP_PORT_NAME,
            "port": contract.SERVICE_PORT,
            "targetPort": contract.HTTP_PORT_NAME,
            "protocol": "TCP",
        }
    ]
    if api.spec.networking.grpc:
        ports.append(
            {
                "name": contract.GRPC_PORT_NAME,
                "port": contract.GRPC_PORT,
                "targetPort": contract.GRPC_PORT_NAME,
                "protocol": "TCP",
                # what tells gateways and meshes that it is HTTP/2 without TLS
                "appProtocol": "kubernetes.io/h2c",
            }
        )
    body["spec"] = {
        "type": "ClusterIP",
        "selector": selector_labels(api.metadata.name),
        "ports": ports,
    }
    return body


def url(api: BatchedAPI) -> str:
    """Where predictions are asked for from inside the cluster."""
    return f"http://{api.metadata.name}.{api.metadata.namespace}.svc{api.endpoint}"
