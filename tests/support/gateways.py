"""Configuration of nginx and Envoy out of an Ingress and routes, as a controller would make it.

No controller of the Gateway API runs here: they come as images of registries. So what an operator
wrote into the apiserver is translated field by field: hosts, prefixes, timeouts and backends. A
backend is its Service's address, where some controllers take those of its pods.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ports import HOST
from proxies import nginx

Body = dict[str, Any]
Place = Callable[[str, Any], tuple[str, int]]
"""Address and port of a Service by its name and one of its ports, by name or number."""
_TYPES: Final = "type.googleapis.com/envoy.extensions"
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def nginx_config(ingress: Body, place: Place, port: int, folder: str) -> str:
    """What an Ingress says, for nginx; a host that it does not name gets 404."""
    servers = [_server(rule, place, port) for rule in ingress["spec"]["rules"]]
    unknown = f"server {{ listen {HOST}:{port} default_server; return 404; }}"
    return nginx(folder, "\n".join((unknown, *servers)))


def _server(rule: Body, place: Place, port: int) -> str:
    upstreams, locations = [], []
    for number, path in enumerate(rule["http"]["paths"]):
        service = path["backend"]["service"]
        address, at = place(service["name"], *service["port"].values())
        name = f"{rule['host'].replace('*', 'any')}-{number}"
        upstreams.append(f"upstream {name} {{ server {address}:{at}; keepalive 64; }}\n")
        locations.append(
            f"location {path['path']} {{ proxy_pass http://{name}; proxy_http_version 1.1;"
            ' proxy_set_header Connection ""; proxy_set_header Host $host; }\n'
        )
    server = f"server {{ listen {HOST}:{port}; server_name {rule['host']}; {''.join(locations)} }}"
    return "".join(upstreams) + server


def envoy_config(routes: Iterable[Body], place: Place, port: int) -> Body:
    """What HTTPRoutes and GRPCRoutes say, for one listener of Envoy."""
    hosts, clusters = [], []
    for route in routes:
        grpc = route["kind"] == "GRPCRoute"
        name = f"{route['kind']}-{route['metadata']['name']}"
        made = []
        for number, rule in enumerate(route["spec"]["rules"]):
            (backend,) = rule["backendRefs"]
            cluster = f"{name}-{number}"
            clusters.append(_cluster(cluster, place(backend["name"], backend["port"]), grpc=grpc))
            action = {"cluster": cluster, "timeout": _timeout(rule), **_RETRIES}
            made += [{"match": match, "route": action} for match in _matches(rule)]
        domains = route["spec"]["hostnames"]
        hosts.append({"name": name, "domains": domains, "routes": made})
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    listener = {"address": _address(HOST, port), "filter_chains": [{"filters": [network]}]}
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


_RETRIES: Final = {
    "retry_policy": {"retry_on": "connect-failure,reset-before-request", "num_retries": 2}
}
"""Of what no replica has seen, as Envoy Gateway does without being asked."""


def _matches(rule: Body) -> list[Body]:
    prefixes = [one["path"]["value"] for one in rule.get("matches", ())] or ["/"]
    return [{"prefix": "/"} if one == "/" else {"path_separated_prefix": one} for one in prefixes]


def _timeout(rule: Body) -> str:
    found = re.findall(r"([0-9]+)(ms|h|m|s)", rule.get("timeouts", {}).get("request", "0s"))
    return f"{sum(int(number) * _MILLISECONDS[unit] for number, unit in found) / 1000:g}s"


def _cluster(name: str, to: tuple[str, int], *, grpc: bool) -> Body:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(*to)}}]}]
    key = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
    version: Body = {"http2_protocol_options" if grpc else "http_protocol_options": {}}
    options = {"@type": key, "explicit_http_config": version}
    return {
        "name": name,
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
        "typed_extension_protocol_options": {key.removeprefix("type.googleapis.com/"): options},
    }


def _address(host: str, port: int) -> Body:
    return {"socket_address": {"address": host, "port_value": port}}
