"""APIs are made and deleted, half of them while the operator is down: what stays behind?

    python tests/bench/operator_cycles.py --cycles 1000

On a real apiserver with Kubernetes' own garbage collector and namespace controller. A fifth of the
APIs are deleted with their namespace. In half of the cycles the operator is killed before the
deletion, in a quarter before the creation too, and is started again after it. What is there half a
minute later is stuck; what is there in the end is an orphan.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click
from harness.control_plane import OPERATOR, ControlPlane, control_plane, controllers
from harness.operators import NAMESPACES, Operator, User, installed, until
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_operator.cluster import BATCHED_APIS, CONFIG_MAPS, JsonObject
from batchedapi_operator.kube import Kube

BATCH: Final = 50
"""Cycles side by side: the operator is killed for all of them at once."""
SPACES: Final = 5
"""Namespaces of a batch, one of which is deleted with what is in it."""
OBJECTS: Final = 5
"""An API, its Deployment, Service, budget and revision."""
PATIENCE: Final = 120.0
GONE_SECONDS: Final = 30.0
DOWN: Final = ("", "", "deletion", "both")
"""When the operator is down, by turns of batches."""
SPEC: Final[JsonObject] = {
    "predictor": {"path": "model:Iris", "source": {"configMap": "files"}},
    "autoscaling": {"minReplicas": 1},
}
FILES: Final = {"metadata": {"name": "files"}, "data": {"model.py": "class Iris: ..."}}


async def owned(kube: Kube, spaces: set[str]) -> list[str]:
    """APIs and children that are there, of these namespaces."""
    found = []
    for space in spaces:
        user = User(kube, space)
        found += [f"{space}/{key}" for key in await user.children()]
        apis = await kube.find(BATCHED_APIS, space)
        found += [f"{space}/BatchedAPI/{body['metadata']['name']}" for body in apis]
    return found


async def named(kube: Kube) -> set[str]:
    """Namespaces that are there."""
    found = await kube._request("GET", NAMESPACES.path(None), {})
    return {body["metadata"]["name"] for body in found["items"]}


async def create(users: list[User], cycles: int) -> None:
    """So many APIs, over all namespaces."""
    for user in users:
        await user.create_namespace()
        await user.create(CONFIG_MAPS, FILES)
    for number in range(cycles):
        body = {"metadata": {"name": f"api-{number}"}, "spec": SPEC}
        await users[number % SPACES].create(BATCHED_APIS, body)


async def delete(users: list[User], cycles: int) -> None:
    """The first namespace, and in the others the APIs."""
    await users[0].delete_namespace()
    for number in range(cycles):
        if number % SPACES:
            await users[number % SPACES].delete(BATCHED_APIS, f"api-{number}")


async def cycle(kube: Kube, operator: Operator, batch: int, cycles: int) -> dict[str, Any]:
    """Make so many APIs, and delete them."""
    down, spaces = DOWN[batch % len(DOWN)], [f"cycles-{batch}-{n}" for n in range(SPACES)]
    users = [User(kube, space) for space in spaces]

    async def made() -> bool:
        return len(await owned(kube, set(spaces))) >= OBJECTS * cycles

    async def gone() -> bool:
        return spaces[0] not in await named(kube) and not await owned(kube, set(spaces))

    if down == "both":
        operator.kill()
    await create(users, cycles)
    if down != "both":
        await until(made, PATIENCE, 1.0)
    if down == "deletion":
        operator.kill()
    await delete(users, cycles)
    if down:
        operator.start()
        await operator.ready()
    left: list[str] = []
    began = time.monotonic()
    try:
        await until(gone, GONE_SECONDS, 0.5)
    except TimeoutError:
        left = await owned(kube, set(spaces)) or spaces[:1]
    seconds = time.monotonic() - began
    for user in users[1:]:
        await user.delete_namespace()
    return {"down": down or "never", "cycles": cycles, "seconds": seconds, "left": left}


async def measure(plane: ControlPlane, cycles: int) -> dict[str, Any]:
    """All of them, and what is there in the end."""
    async with installed(plane) as kube:
        with controllers(plane, "garbage-collector-controller,namespace-controller"):
            operator = Operator(plane.kubeconfig(OPERATOR), "", plane.folder / "operator.log")
            operator.start()
            try:
                await operator.ready()
                batches = []
                for batch, first in enumerate(range(0, cycles, BATCH)):
                    ran = await cycle(kube, operator, batch, min(BATCH, cycles - first))
                    click.echo(f"{first + ran['cycles']}: {ran}", err=True)
                    batches.append(ran)

                async def empty() -> bool:
                    return not any(name.startswith("cycles-") for name in await named(kube))

                await until(empty, PATIENCE, 0.5)
            except TimeoutError:
                pass  # told below
            finally:
                operator.kill()
            spaces = await named(kube)
            return {
                "batches": batches,
                "namespaces": sorted(name for name in spaces if name.startswith("cycles-")),
                "orphans": await owned(kube, spaces),
            }


@click.command(help=help_of(__doc__))
@click.option("--cycles", type=click.IntRange(1), default=1000, show_default=True)
@out_option
def main(*, cycles: int, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        found = asyncio.run(measure(plane, cycles))
    counts: Counter[str] = Counter()
    stuck: Counter[str] = Counter()
    longest: dict[str, float] = {}
    for one in found["batches"]:
        counts[one["down"]] += one["cycles"]
        stuck[one["down"]] += len(one["left"])
        longest[one["down"]] = max(longest.get(one["down"], 0.0), one["seconds"])
    table = Table(
        f"{sum(counts.values())} APIs made and deleted, a fifth of them with their namespace",
        ["the operator is down at", "cycles", "objects stuck", "longest s until all were gone"],
        [[down, str(n), str(stuck[down]), f"{longest[down]:.1f}"] for down, n in counts.items()],
    )
    notes = [f"Afterwards: {len(found['namespaces'])} namespaces, {len(found['orphans'])} orphans."]
    report("operator-cycles", began, [table], notes=notes, measured=found, out=out)
    if sum(counts.values()) < cycles or stuck.total() or found["namespaces"] or found["orphans"]:
        sys.exit("something stays behind")


if __name__ == "__main__":
    main()
