"""Requests through a gateway and an Ingress while replicas behind them are rolled: none is lost.

    python tests/bench/exposed.py    # wants the cluster of KUBECONFIG

The apiserver has the Gateway API's own definitions, and the operator writes an HTTPRoute, a
GRPCRoute and an Ingress. What is read back is translated for Envoy and nginx (gateways.py), which
run here. Three loads, one through each, with the hosts of the manifest; examples/02-sleepy answers.
Half of the requests over HTTP have a new connection each. Any answer but 200 or OK is a loss.
"""

import asyncio
import collections
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import grpc
import rolling
from harness.report import Table, environment, help_of, out_option, report
from harness.service_load import Counts, ServiceLoad, through
from rolling import NAME, NAMESPACE, REPLICAS

import cluster
from batchedapi_serving.codecs.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from gateway_api import definitions
from gateways import envoy_config, nginx_config
from ports import HOST, free_port
from proxies import running

HOSTS: Final = {name: f"{name}.example.com" for name in ("route", "grpc", "ingress")}
NETWORKING: Final = {
    "grpc": True,
    "gateway": {
        "parentRefs": [{"name": "edge"}],
        "hostnames": ["*.wild.example.com", HOSTS["route"]],
        "grpcHostnames": [HOSTS["grpc"]],
        "scheme": "http",
        "paths": [f"/{NAME}", "/v2"],
    },
    "ingress": {"host": HOSTS["ingress"]},
}
VALUES: Final = ("exposure.gateway=true", "exposure.ingress=true")
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_LENGTH_BYTES: Final = 4
"""Before each element of a BYTES tensor in `raw_output_contents`."""
CALLS_SECONDS: Final = 45.0


class GrpcLoad:
    """Calls at a rate over one channel, until it is stopped."""

    def __init__(self, port: int, host: str, rate: float) -> None:
        self.counts = Counts()
        self._to = f"{HOST}:{port}", host
        self._rate = rate
        self._running = True

    async def run(self) -> None:
        """Send at an even beat, and never wait for an answer before the next."""
        address, host = self._to
        options = [("grpc.default_authority", host)]
        tasks: set[asyncio.Task[None]] = set()
        async with grpc.aio.insecure_channel(address, options) as channel:
            ask = channel.unary_unary(
                INFER, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
            )
            due = time.monotonic()
            while self._running:
                while due <= time.monotonic():
                    self.counts.sent += 1
                    task = asyncio.create_task(self._one(ask, self.counts.sent, due))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    due += 1 / self._rate
                await asyncio.sleep(0.004)
            await asyncio.gather(*tasks)

    def stop(self) -> None:
        """Ask nothing more."""
        self._running = False

    async def _one(self, ask: Callable[..., Any], number: int, due: float) -> None:
        item = json.dumps({"id": number}, separators=(",", ":")).encode()
        message = ModelInferRequest(model_name=NAME)
        tensor = message.inputs.add(name="input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(item)
        try:
            answer = await ask(message, timeout=CALLS_SECONDS)
        except grpc.aio.AioRpcError as error:
            self.counts.lost[f"{error.code().name} {error.details()}"[:200]] += 1
            return
        (output,) = answer.raw_output_contents
        if json.loads(output[_LENGTH_BYTES:]) != {"id": number}:
            self.counts.lost["another's answer"] += 1
            return
        self.counts.answered += 1
        self.counts.slowest = max(self.counts.slowest, time.monotonic() - due)


def place(name: str, port: str | int) -> tuple[str, int]:
    """Address of a Service, and the number of one of its ports."""
    spec = cluster.get("service", name, NAMESPACE)["spec"]
    (found,) = (one["port"] for one in spec["ports"] if port in (one["name"], one["port"]))
    return spec["clusterIP"], found


@contextlib.contextmanager
def proxies() -> Iterator[tuple[int, int]]:
    """Ports of Envoy and nginx, as the objects in the cluster say."""
    envoy, nginx = free_port(), free_port()
    routes = [cluster.get(kind, NAME, NAMESPACE) for kind in ("httproute", "grpcroute")]
    ingress = cluster.get("ingress", NAME, NAMESPACE)
    of_envoy = json.dumps(envoy_config(routes, place, envoy))
    with (
        running("envoy", lambda _: of_envoy, envoy),
        running("nginx", lambda folder: nginx_config(ingress, place, nginx, folder), nginx),
    ):
        yield envoy, nginx


async def measure(rounds: int, requests: int, rate: float) -> dict[str, Any]:
    """Updates under the three loads; goes on until enough was asked through each."""
    url = cluster.get("bapi", NAME, NAMESPACE)["status"]["url"]
    with proxies() as (envoy, nginx):
        loads = {
            "HTTPRoute": ServiceLoad(HOST, envoy, f"/{NAME}", rate, host=HOSTS["route"]),
            "Ingress": ServiceLoad(HOST, nginx, f"/{NAME}", rate, host=HOSTS["ingress"]),
        }
        calls = GrpcLoad(envoy, HOSTS["grpc"], rate)
        others = [asyncio.create_task(loads["Ingress"].run()), asyncio.create_task(calls.run())]
        todo = rolling.steps("rollouts", rounds, 1, 0.0)
        found = await through(loads["HTTPRoute"], todo, requests)
        loads["Ingress"].stop()
        calls.stop()
        await asyncio.gather(*others)
    counts = {**{name: load.counts for name, load in loads.items()}, "GRPCRoute": calls.counts}
    told = {name: one.told() for name, one in counts.items()}
    return {**found, "counts": told, "rate": rate, "url": url}


@click.command(help=help_of(__doc__))
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--requests", type=click.IntRange(0), default=34_000, show_default=True, help="Each.")
@click.option("--rate", type=click.FloatRange(1), default=100.0, show_default=True, help="Each.")
@out_option
def main(*, rounds: int, requests: int, rate: float, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    for definition in definitions():
        text = json.dumps(definition)
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    with rolling.deployed(NETWORKING, *VALUES):
        found = asyncio.run(measure(rounds, requests, rate))
    wrong = found["url"] != f"http://{HOSTS['route']}/{NAME}"
    rows, lost = [], collections.Counter[str]()
    for name, one in found["counts"].items():
        lost.update({f"{name}: {why}": n for why, n in one["lost"].items()})
        seen = (f"{one['sent']:,}", f"{one['answered']:,}", f"{sum(one['lost'].values())}")
        rows.append([name, *seen, f"{one['slowest']:.2f} s"])
    head = ["through", "requests", "answered", "lost", "slowest"]
    tables = [Table(f"{len(found['steps'])} rolling updates of {REPLICAS} replicas", head, rows)]
    if lost:
        of_lost = [[str(number), why] for why, number in lost.items()]
        tables.append(Table("Lost", ["requests", "of which"], of_lost))
    note = (
        f"`status.url` was {found['url']}. {rate:g} requests/s were sent through each. Routes and"
        " Ingress were translated for Envoy and nginx by the test: no controller runs here."
    )
    report("exposed", began, tables, notes=[note], measured=found, out=out)
    if lost or wrong or "broken_off" in found:
        sys.exit(1)


if __name__ == "__main__":
    main()
