"""Writes: carries out a plan, and leaves out what the cluster already has."""

import asyncio
import copy
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from operator import getitem
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    JsonObject,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError, ConflictError, NotOwnedError, RefusedError
from batchedapi_operator.events import record
from batchedapi_operator.kube import Kube
from batchedapi_operator.outbox import Send
from batchedapi_operator.queue import backoff
from batchedapi_operator.reconcile.ownership import owned
from batchedapi_operator.reconcile.plan import Apply, Plan
from batchedapi_operator.resources import deployment_names, peers_name, web_name
from batchedapi_operator.views import ChildView, DeploymentView

_DATA: Final[tuple[str, ...]] = ("data", "binaryData", "immutable")
"""Members of a ConfigMap beside its metadata."""


_Place = tuple[Resource, ObjectKey, str]
"""A child, and what is done to it."""
_Tried = tuple[int, str, str]
"""The API's generation, what was to be written, and over what."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failed write of one child: the apiserver has answered, and not done it."""

    tried: _Tried
    answer: Callable[[], ApplyError]
    """The error anew: one that was raised keeps all that was read then."""
    failures: int
    until: float
    """Time of the event loop's clock: before it the same is not sent again."""


class PlanExecutor:
    """Carries out plans. It remembers what it last applied, so that nothing is sent twice.

    What was refused is sent again at a pace of its own, so that whoever looks in between learns
    why it is not there, and the apiserver is not asked. A change of the API, or of the child that
    is in the way, is sent at once.
    """

    def __init__(self, cluster: Kube, wall: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._wall = wall
        self._applied: dict[tuple[Resource, ObjectKey], tuple[str, str]] = {}
        self._refused: dict[_Place, _Refusal] = {}

    async def write_children(self, key: ObjectKey, plan: Plan) -> dict[ObjectKey, DeploymentView]:
        """Apply, scale and delete, in the plan's order.

        Returns:
            The Deployments as they were applied, by name; not those that are as they were.

        Raises:
            RefusedError: The apiserver will not have one of the children.
            NotOwnedError: A revision's name is taken.
            ApplyError: A write failed; the plan is to be made anew. Of what was answered it has the
                rest, and comes again until that is over.
        """
        generation = plan.status["observedGeneration"]
        uids, deployed = dict[ObjectKey, str](), dict[ObjectKey, DeploymentView]()
        for apply in plan.apply:
            uid, body = await self._apply(apply, generation)
            if apply.resource is DEPLOYMENTS:
                uids[ObjectKey.of(apply.body)] = uid
                if body is not None:
                    deployed[ObjectKey.of(body)] = DeploymentView.of(body)
        await self._scale(key, plan, uids)
        for kind, child in plan.delete:
            name = ObjectKey(key.namespace, child.name)
            with self._paced((kind, name, "delete"), (generation, "", child.uid)):
                await self._cluster.delete(kind, name, child.uid)
            self._applied.pop((kind, name), None)
        for apply in plan.give_back:
            found = await self._cluster.get(CONFIG_MAPS, ObjectKey.of(apply.body))
            if found is not None:
                data = {part: found[part] for part in _DATA if part in found}
                await self._apply(replace(apply, body={**apply.body, **data}), generation)
        return deployed

    async def _scale(self, key: ObjectKey, plan: Plan, uids: dict[ObjectKey, str]) -> None:
        """Replicas of the Deployments, which have those uids, and of the API."""
        generation = plan.status["observedGeneration"]
        web = ObjectKey(key.namespace, web_name(key.name))
        counts = [(key, plan.replicas), (web, plan.web_replicas)]
        if plan.retire is not None:  # without a right to delete it, which a mistake could use
            counts, uids[web] = [*counts, (web, 0)], plan.retire.uid
        for name, replicas in counts:
            if replicas is not None:
                with self._paced((DEPLOYMENTS, name, "scale"), (generation, str(replicas), "")):
                    await self._cluster.scale(name, replicas, uid=uids[name])
        if plan.own_replicas is not None:
            own, version = plan.own_replicas
            with self._paced((BATCHED_APIS, key, "scale"), (generation, str(own), "")):
                await self._cluster.scale_api(key, own, version=version)

    async def write_status(self, key: ObjectKey, uid: str, plan: Plan) -> None:
        """The reconciler's part of the status."""
        await self._cluster.apply_status(key, uid, plan.status, contract.FIELD_MANAGER)

    def events(self, key: ObjectKey, uid: str, plan: Plan) -> Send:
        """A function that records the events of the status, with the time of this call."""
        return partial(record, self._cluster, plan.notes, key, uid, self._wall())

    def forget(self, key: ObjectKey) -> None:
        """The API `key` is gone, and its children with it."""
        prefix = f"{key.name}-"

        def stays(resource: Resource, child: ObjectKey) -> bool:
            named = child.name in {*deployment_names(key.name), peers_name(key.name)}
            same = named or (resource is CONFIG_MAPS and child.name.startswith(prefix))
            return not same or child.namespace != key.namespace

        self._applied = {one: seen for one, seen in self._applied.items() if stays(*one)}
        self._refused = {one: why for one, why in self._refused.items() if stays(*one[:2])}

    async def _apply(self, apply: Apply, generation: int) -> tuple[str, JsonObject | None]:
        """Returns the child's uid, and its body if there was something to apply."""
        key = ObjectKey.of(apply.body)
        place = (apply.resource, key)
        digest = hashlib.sha256(json.dumps(apply.body, sort_keys=True).encode()).hexdigest()
        existing = apply.existing
        if existing is None and apply.resource is CONFIG_MAPS:
            # a revision is found by its label; one without it may be there under the same name
            found = await self._cluster.get_metadata(CONFIG_MAPS, key)
            if found is not None:
                child, (owner,) = ChildView.of(found), apply.body["metadata"]["ownerReferences"]
                if child.owner_uid not in {"", owner["uid"]}:
                    api = f"{key.namespace}/{owner['name']}"
                    raise NotOwnedError("ConfigMap", str(key), api)
                existing = child if owned(owner["uid"], child) else None
        if existing is not None and (digest, _seen(existing)) == self._applied.get(place):
            return existing.uid, None
        tried = generation, digest, "" if existing is None else _seen(existing)
        with self._paced((*place, "apply"), tried):
            if existing is not None:
                # with the uid, an object that was replaced in between is not written to
                metadata = {**apply.body["metadata"], "uid": existing.uid}
                answer = await self._put_right(apply.resource, {**apply.body, "metadata": metadata})
            else:
                # without force: against somebody who was quicker to take the name
                answer = await self._cluster.apply(apply.resource, apply.body, force=False)
        deployed = apply.resource is DEPLOYMENTS
        child = DeploymentView.of(answer).child if deployed else ChildView.of(answer)
        self._applied[place] = (digest, _seen(child))
        return child.uid, answer

    @contextmanager
    def _paced(self, place: _Place, tried: _Tried) -> Iterator[None]:
        """Send what is tried, unless it was refused just now; then that is raised once more."""
        now, before = asyncio.get_running_loop().time, self._refused.pop(place, None)
        failures = 0
        if before is not None and before.tried == tried:
            failures = before.failures
            if now() < before.until:
                self._refused[place] = before
                again = before.answer()
                again.rest = before.until - now()
                raise again
        try:
            yield
        except ApplyError as error:
            # another look finds out about a conflict, and the queue waits for who does not answer
            if not (error.unheard or error.final or isinstance(error, ConflictError)):
                error.rest = backoff(failures + 1)
                answer = partial(type(error), error.message, error.status)
                until = now() + error.rest
                self._refused[place] = _Refusal(tried, answer, failures + 1, until)
            raise

    async def _put_right(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Apply to a child that is there; foreign fields that exclude ours go."""
        try:
            return await self._cluster.apply(resource, body, force=True)
        except RefusedError as error:
            live = await self._cluster.get(resource, ObjectKey.of(body))
            managed = cleared(live, body, error.fields) if live is not None else None
            if live is None or managed is None:
                raise
            await self._cluster.set_managers(resource, live, managed)
        return await self._cluster.apply(resource, body, force=True)


def _seen(child: ChildView) -> str:
    """Changes when an apply is due again; scaling a Deployment does not, other than a canary."""
    return child.asked or child.fingerprint


# What others have put beside our fields so that ours cannot be applied any more. Pure.
#
# An apply leaves foreign fields alone. Some exclude ours: a port under the name of ours, another
# kind of probe or volume in the place of ours. The apiserver then refuses every apply, and names
# fields. What an apply no longer sets it takes away from the object, if nobody else owns it: so
# those foreign fields are written down as ours, and the next apply, in one write, removes them and
# sets ours.

_ITEM: Final = re.compile(r"\[\d+\]")
_ANY: Final = "*"
_NEVER: Final = ("f:spec", "f:metadata", "f:status")
"""Structs of which only a field that was named is taken: too much else is in them."""
_Path = tuple[str, ...]


def cleared(live: JsonObject, body: JsonObject, refused: Sequence[str]) -> list[JsonObject] | None:
    """The `managedFields` with which an apply of `body` removes what excludes it.

    Args:
        live: The object as it is.
        body: What we would apply.
        refused: Fields that the apiserver has named, such as `spec.ports[1].name`.

    Returns:
        None where nothing foreign is in the way of those fields.
    """
    managed = copy.deepcopy(live["metadata"].get("managedFields") or [])
    whole = [entry for entry in managed if not entry.get("subresource")]
    our_name = (contract.FIELD_MANAGER, "Apply")
    named = (one for one in whole if (one.get("manager"), one.get("operation")) == our_name)
    ours = next(named, None)
    if ours is None:
        return None
    foreign = [entry["fieldsV1"] for entry in whole if entry is not ours]
    taken = [
        (path, _taken(theirs, path))
        for theirs, pattern in itertools.product(foreign, map(_steps, refused))
        for path in tuple(_in_the_way(theirs, live, body, pattern))  # `theirs` changes
    ]
    for (*above, last), field in taken:
        place = ours["fieldsV1"]
        for step in above:
            place = place.setdefault(step, {})
        place[last] = field
    return managed if taken else None


def _steps(field: str) -> _Path:
    """A field as steps of `fieldsV1`; which item of a list it was says nothing about ours."""
    steps: list[str] = []
    for part in field.split("."):
        steps += [f"f:{_ITEM.sub('', part)}", *[_ANY] * len(_ITEM.findall(part))]
    return tuple(steps)


def _in_the_way(
    fields: JsonObject, live: JsonObject, body: JsonObject, pattern: _Path
) -> Iterator[_Path]:
    """Paths of a foreign entry's `fields` that hold the refused one, or what excludes it."""
    *around, last = pattern
    for path in _matching(fields, tuple(around)):
        held, own = reduce(getitem, path, fields), _at(body, path)
        if own is None:  # an item of somebody's in a list of ours: by that field is it like ours
            name, item = last.removeprefix("f:"), _at(live, path) if last in held else None
            items = _at(body, path[:-1]) or ()
            if item is not None and any(item.get(name) == one.get(name) for one in items):
                yield path
        elif last in held and not _has(own, last):
            yield (*path, last)
        elif _has(own, last) and path[-1] not in _NEVER:
            yield from ((*path, step) for step in held if step != "." and not _has(own, step))


def _has(own: Any, step: str) -> bool:
    return isinstance(own, dict) and step.removeprefix("f:") in own


def _matching(fields: JsonObject, pattern: _Path, above: _Path = ()) -> Iterator[_Path]:
    if not pattern:
        yield above
        return
    for step, below in fields.items():
        if step == pattern[0] or (pattern[0] == _ANY and step.startswith("k:")):
            yield from _matching(below, pattern[1:], (*above, step))


def _at(body: JsonObject, path: _Path) -> Any:
    place: Any = body
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "k":
            wanted = json.loads(rest).items()
            place = next((one for one in place if wanted <= one.items()), None)
        else:
            place = place.get(rest)
        if place is None:
            return None
    return place


def _taken(fields: JsonObject, path: _Path) -> JsonObject:
    """Cut out; a struct of which nothing is left would say that all of it is owned."""
    first, *rest = path
    if not rest:
        taken: JsonObject = fields.pop(first)
        return taken
    taken = _taken(fields[first], tuple(rest))
    if not fields[first]:
        del fields[first]
    return taken
