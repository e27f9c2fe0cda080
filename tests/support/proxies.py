"""Real proxies in front of a replica, with keep-alive and retries, on loopback ports."""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ports import HOST, free_port
from programs import unpacked

NAMES: Final = ("nginx", "envoy")
_START_SECONDS: Final = 60.0
_NGINX: Final = """
upstream replica {{ server 127.0.0.1:{upstream}; keepalive 64; }}
server {{
    listen 127.0.0.1:{port};
    location / {{
        proxy_pass http://replica;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }}
}}
"""
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def nginx(folder: str, http: str) -> str:
    """Configuration of an nginx that keeps to a folder of its own and serves what `http` says."""
    folders = " ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)
    return f"""
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    {folders}
    {http}
}}
"""


@contextlib.contextmanager
def proxy(name: str, upstream: int) -> Iterator[int]:
    """Port of a running `nginx` or `envoy` that forwards to the port `upstream`.

    Raises:
        RuntimeError: it does not listen; with what it said.
    """
    port = free_port()

    def config(folder: str) -> str:
        if name == "nginx":
            return nginx(folder, _NGINX.format(port=port, upstream=upstream))
        return json.dumps(_envoy(port, upstream))

    with running(name, config, port):
        yield port


@contextlib.contextmanager
def running(name: str, config: Callable[[str], str], port: int) -> Iterator[None]:
    """`nginx` or `envoy` with a configuration, which is told a folder of its own.

    Raises:
        RuntimeError: it does not listen on `port`; with what it said.
    """
    with (
        tempfile.TemporaryDirectory(prefix=f"{name}-") as folder,
        (Path(folder) / "log").open("w+") as log,
    ):
        command = _command(name, Path(folder), config(folder))
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_until_it_listens(port, process, Path(folder) / "log")
            yield
        finally:
            process.terminate()
            process.wait(30)


def _command(name: str, folder: Path, config: str) -> list[str]:
    if name == "nginx":
        file = folder / "nginx.conf"
        file.write_text(config)
        return [unpacked("nginx", "nginx"), "-e", f"{folder}/error.log", "-c", str(file)]
    program = Path(sys.executable).parent / "envoy"
    words = ["--config-yaml", config, "--concurrency", "1", "--disable-hot-restart"]
    return [str(program), *words, "--log-level", "warning"]


def _envoy(port: int, upstream: int) -> dict[str, object]:
    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": HOST, "port_value": number}}

    types = "type.googleapis.com/envoy.extensions.filters"
    route = {
        "cluster": "replica",
        "retry_policy": {"retry_on": "connect-failure,reset-before-request", "num_retries": 2},
    }
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "replica",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.http.router.v3.Router"},
            }
        ],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]}]
    return {
        "static_resources": {
            "listeners": [{"address": address(port), "filter_chains": [{"filters": [network]}]}],
            "clusters": [
                {
                    "name": "replica",
                    "connect_timeout": "5s",
                    "load_assignment": {"cluster_name": "replica", "endpoints": endpoints},
                }
            ],
        }
    }


def _wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on {port}:\n{log.read_text()}")
