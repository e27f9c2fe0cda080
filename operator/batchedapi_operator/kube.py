"""The edge to the apiserver: every request the operator makes, over `kubernetes.aio`.

Requests are made by path rather than through the dynamic client, which ignores `subresource`
without a word and needs a discovery round trip before the first request.
"""

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio import client, config

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    OUTSIDE_SYSTEM,
    JsonObject,
    ObjectKey,
    Resource,
    listed,
    section,
)
from batchedapi_operator.election import Permit
from batchedapi_operator.errors import (
    ApplyError,
    ConflictError,
    NamespaceGoingError,
    NotPermittedError,
    OperatorError,
    RefusedError,
    WebhookError,
    unheard,
)

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 15.0
CONNECTIONS: Final = 7
"""To the apiserver, beside those of watches. Each takes 100 KiB for as long as it is open, and
one that was given up has to be made anew just when the apiserver has much to do."""
OBJECTS_A_PAGE: Final = 20
SECONDS_PER_RETURN: Final = 5.0
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With the parameter the client sends bytes as they are."""
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_METADATA_OF_MANY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_UNCALLED: Final = "failed calling webhook"
_DENIED: Final = re.compile(r'admission webhook ".*?" denied the request')
"""With a status of the webhook's own choice: from 500 on it is in trouble itself."""
_NAMESPACE_GOING: Final = "because it is being terminated"
_SILENT: Final = (0, 502, 503, 504)
"""Nobody was there. A 500 may be about one object alone, and a 429 about one client."""
_REFUSALS: Final = (400, 403, 413, 422)
_ANOTHER_UID: Final = "metadata.uid: Invalid value"
"""Refusal of an apply: the apiserver takes it for an edit of a field that nobody may edit."""


def as_yaml(body: JsonObject) -> bytes:
    """`body` as JSON that YAML reads alike, which the apiserver takes an apply for.

    JSON escapes a character such as an emoji as two surrogates, each of which YAML refuses, so it
    is written as it is; all others beyond ASCII are escaped, as YAML wants some of them to be.
    """
    text = json.dumps(body, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode()  # half a surrogate is no character in either
    return re.sub("[\x7f-\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text).encode()


class Answering:
    """Knows that the apiserver answers again after it did not, and tells those who wait for that.

    At most once in `SECONDS_PER_RETURN`: one that answers some and not others is not to be asked
    by all at once for each answer.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._silent = False
        self._told = float("-inf")
        self._waiting: tuple[Callable[[], None], ...] = ()

    def tell(self, *waiting: Callable[[], None]) -> None:
        """Whom to call when it answers again."""
        self._waiting = waiting

    def heard(self, status: int) -> None:
        """Take the outcome of a request: an HTTP status, 0 for no answer."""
        if status in _SILENT:
            self._silent = True
        elif self._silent and self._monotonic() - self._told >= SECONDS_PER_RETURN:
            self._silent, self._told = False, self._monotonic()
            log.info("apiserver answers again")
            for call in self._waiting:
                call()


class Kube:
    """One connection pool to one cluster."""

    def __init__(self, api: client.ApiClient, permit: Permit | None = None) -> None:
        self._api = api
        self._permit = permit
        self.answering = Answering()

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, permit: Permit | None = None, connections: int = CONNECTIONS
    ) -> AsyncIterator[Self]:
        """With the pod's service account, else with the kubeconfig of the environment.

        Args:
            permit: Asked before each write; None: every write is allowed.

        Raises:
            OperatorError: There is neither.
        """
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call] # publishes no types
        except config.ConfigException:
            try:
                await config.load_kube_config()  # type: ignore[no-untyped-call] # as above
            except config.ConfigException as error:
                raise OperatorError(
                    f"neither in a pod with a service account nor given a kubeconfig: {error};"
                    " set KUBECONFIG"
                ) from error
        configuration = client.Configuration.get_default_copy()
        configuration.connection_pool_maxsize = connections
        if permit is not None:
            configuration.client_session_kwargs = {"request_class": _permitted(permit)}
        async with client.ApiClient(configuration) as api:
            yield cls(api, permit)

    async def get(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """The object as it is now; None if there is none."""
        return await self._find(resource.path(key.namespace, key.name), _JSON)

    async def get_metadata(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """The object's metadata alone; None if there is no object."""
        return await self._find(resource.path(key.namespace, key.name), _METADATA)

    async def find(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> list[JsonObject]:
        """Objects as they are now, whole; items of a list lack `kind` and `apiVersion`."""
        query = _selected(namespace, selector)
        found = await self._request("GET", resource.path(namespace), query)
        return list(found["items"] or ())

    async def list_metadata(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """Metadata of objects, and the resource version to watch from.

        In pages, and of managedFields without the fields: those of an API's status are 40 KiB once
        they are parsed.
        """
        query = {"limit": str(OBJECTS_A_PAGE), **_selected(namespace, selector)}
        items: list[JsonObject] = []
        while True:
            path = resource.path(namespace)
            found = await self._request("GET", path, query, accept=_METADATA_OF_MANY)
            for item in found["items"] or ():
                for entry in listed(item["metadata"], "managedFields"):
                    entry.pop("fieldsV1", None)
                items.append(item)
            if not found["metadata"].get("continue"):
                return items, found["metadata"]["resourceVersion"]
            query["continue"] = found["metadata"]["continue"]

    async def check_list(self, resource: Resource, namespace: str | None) -> None:
        """Ask for one object of a kind, for the sake of the answer.

        Raises:
            ApplyError: It cannot be listed: no right to, no such kind, or no apiserver.
        """
        query = {"limit": "1", **_selected(namespace)}
        await self._request("GET", resource.path(namespace), query, accept=_METADATA_OF_MANY)

    async def watch_metadata(
        self,
        resource: Resource,
        namespace: str | None,
        resource_version: str,
        seconds: int,
        *,
        silent: int,
    ) -> AsyncIterator[JsonObject]:
        """Watch events with nothing but metadata in their objects, for at most `seconds`.

        A stream whose end does not come within `silent` seconds is given up.

        Raises:
            ApplyError: The stream could not be had or broke; list and watch again.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
            **_selected(namespace),
        }
        path = resource.path(namespace)
        response = await self._send("GET", path, query, accept=_METADATA, seconds=silent)
        try:
            _raise_for(response.status, b"", f"watch {path}")
            async for line in response.content:
                yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApplyError(f"watch {path}: {error!r}", 0) from error
        finally:
            response.close()

    async def apply(self, resource: Resource, body: JsonObject, *, force: bool) -> JsonObject:
        """Server-side apply of a child.

        Args:
            body: Every field that the operator has an opinion on, and no other.
            force: Take fields that others have changed back.

        Raises:
            ConflictError: Another manager owns a field, or the uid in `body` is not the object's.
            RefusedError: The apiserver will not have the object.
            ApplyError: It could not be asked.
        """
        key = ObjectKey.of(body)
        query = {"fieldManager": contract.FIELD_MANAGER, "force": json.dumps(force)}
        path = resource.path(key.namespace, key.name)
        return await self._request("PATCH", path, query, body, content_type=_APPLY)

    async def set_managers(
        self, resource: Resource, live: JsonObject, managed: list[JsonObject]
    ) -> None:
        """Write down anew who owns which fields of exactly that version of an object.

        Raises:
            ConflictError: It has changed since.
            ApplyError: It could not be asked.
        """
        key, version = ObjectKey.of(live), live["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "managedFields": managed}}
        query = {"fieldManager": contract.FIELD_MANAGER}
        path = resource.path(key.namespace, key.name)
        await self._request("PATCH", path, query, body, content_type=_MERGE)

    async def apply_status(
        self, key: ObjectKey, uid: str, status: JsonObject, manager: str
    ) -> None:
        """Server-side apply of one writer's part of the status of the API with that uid.

        The apiserver heeds no uid in a status, as it does in children, but the version: so the
        write is for the version at which the name was still that API's.

        Raises:
            ConflictError: The API was changed between the look and the write; whoever sends keeps
                the pace of writes, so it is tried again from there.
            ApplyError: It is gone (404), or the apiserver refused, or answered without the status.
        """
        found = await self.get_metadata(BATCHED_APIS, key)
        if found is None or found["metadata"]["uid"] != uid:
            raise ApplyError(f"status of BatchedAPI {key}: the one with uid {uid} is gone", 404)
        version = found["metadata"]["resourceVersion"]
        body = {
            "apiVersion": BATCHED_APIS.api_version,
            "kind": BATCHED_APIS.kind,
            "metadata": {
                "name": key.name, "namespace": key.namespace, "resourceVersion": version,
            },
            "status": status,
        }  # fmt: skip
        path = BATCHED_APIS.path(key.namespace, key.name, "status")
        query = {"fieldManager": manager, "force": "true"}
        answer = await self._request("PATCH", path, query, body, content_type=_APPLY)
        if status and not answer.get("status"):
            raise ApplyError(f"status of BatchedAPI {key} was dropped by the apiserver", 200)

    async def scale(
        self, key: ObjectKey, replicas: int, *, uid: str, version: str | None = None
    ) -> None:
        """Set the replicas of an API's Deployment, as the autoscaler, through /scale.

        A server-side apply: the apiserver records who set the replicas only for that, as long as
        they have had no owner.

        Raises:
            ConflictError: The Deployment is not the one with that uid, or of that version.
            ApplyError: It could not be asked, or there is none.
        """
        path = DEPLOYMENTS.path(key.namespace, key.name, "scale")
        query = {"fieldManager": contract.AUTOSCALER_FIELD_MANAGER, "force": "true"}
        metadata = {"name": key.name, "namespace": key.namespace, "uid": uid}
        if version is not None:
            metadata["resourceVersion"] = version
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": metadata,
            "spec": {"replicas": replicas},
        }
        await self._request("PATCH", path, query, body, content_type=_APPLY)

    async def scale_api(self, key: ObjectKey, replicas: int, *, version: str) -> None:
        """Set `spec.replicas` of the API of that version, through its own /scale.

        No apply: the apiserver cannot tell whose the field is in a scale of a custom resource.

        Raises:
            ConflictError: Somebody else has written it since.
            ApplyError: It could not be asked, or there is none.
        """
        path = BATCHED_APIS.path(key.namespace, key.name, "scale")
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        query = {"fieldManager": contract.AUTOSCALER_FIELD_MANAGER}
        await self._request("PATCH", path, query, body, content_type=_MERGE)

    async def delete(self, resource: Resource, key: ObjectKey, uid: str) -> None:
        """Delete exactly the object with that uid; one that is gone already is well."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            path = resource.path(key.namespace, key.name)
            await self._request("DELETE", path, {}, body)
        except ApplyError as error:
            if error.status != 404:  # noqa: PLR2004 - HTTP: not found
                raise

    async def create_event(self, body: JsonObject) -> None:
        """Record an events.k8s.io/v1 Event."""
        namespace = body["metadata"]["namespace"]
        await self._request("POST", EVENTS.path(namespace), {}, body)

    async def read_lock(
        self, resource: Resource, key: ObjectKey, *, seconds: float
    ) -> JsonObject | None:
        """A Lease or a claim; None if there is none. Whoever asks waits for so many seconds."""
        return await self._find(resource.path(key.namespace, key.name), _JSON, seconds)

    async def create_lock(
        self, resource: Resource, body: JsonObject, *, seconds: float
    ) -> JsonObject:
        """A new one.

        Raises:
            ConflictError: There is one.
        """
        path = resource.path(body["metadata"]["namespace"])
        return await self._request("POST", path, {}, body, seconds=seconds)

    async def change_lock(
        self, resource: Resource, body: JsonObject, *, seconds: float
    ) -> JsonObject:
        """The one of the version in `body`; what that does not have stays.

        Raises:
            ConflictError: It has another version.
        """
        path = resource.path(body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._request("PATCH", path, {}, body, content_type=_MERGE, seconds=seconds)

    async def claims(self, label: str, *, seconds: float) -> list[JsonObject]:
        """ConfigMaps with a label, in every namespace."""
        query = {"labelSelector": label}
        found = await self._request("GET", CONFIG_MAPS.path(None), query, seconds=seconds)
        return list(found["items"] or ())

    async def _find(
        self, path: str, accept: str, seconds: float = REQUEST_SECONDS
    ) -> JsonObject | None:
        try:
            return await self._request("GET", path, accept=accept, seconds=seconds)
        except ApplyError as error:
            if error.status == 404:  # noqa: PLR2004 - HTTP: not found
                return None
            raise

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        *,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> JsonObject:
        asked = dict(query or {})
        with self._counted(method):
            if method != "GET":
                if self._permit is not None:
                    if not self._permit.valid:
                        text = f"{method} {path}: not sent, this replica does not lead at present"
                        raise ApplyError(text, 0)
                    seconds = min(seconds, self._permit.seconds)
                asked["timeout"] = f"{seconds * 1000:.0f}ms"  # of the apiserver's work on it
            response = await self._send(
                method, path, asked,
                body=body, content_type=content_type, accept=accept, seconds=seconds,
            )  # fmt: skip
            try:
                payload = await response.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ApplyError(f"{method} {path}: {error!r}", 0) from error
        _raise_for(response.status, payload, f"{method} {path}")
        return dict(json.loads(payload))

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        counts = 0 if method == "GET" or self._permit is None else 1
        if self._permit is not None:
            self._permit.under_way += counts
        try:
            yield
        finally:
            if self._permit is not None:
                self._permit.under_way -= counts

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: JsonObject | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = REQUEST_SECONDS,
    ) -> aiohttp.ClientResponse:
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=as_yaml(body) if content_type == _APPLY and body is not None else body,
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            answer = await self._api.call_api(*request, _request_timeout=timeout)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self.answering.heard(0)
            raise ApplyError(f"{method} {path}: {error!r}", 0) from error
        response: aiohttp.ClientResponse = answer.response
        self.answering.heard(response.status)
        return response


def _permitted(permit: Permit) -> type[aiohttp.ClientRequest]:
    """Requests of which none that writes leaves this process without permission.

    A request may have waited for a connection, or with the whole process. Between this look and the
    kernel nothing waits any more: headers go out with the first bytes of the body.
    """

    class Permitted(aiohttp.ClientRequest):
        async def write_bytes(
            self, writer: Any, conn: Any, content_length: int | None = None
        ) -> None:
            if self.method == "GET" or permit.seconds > 0.0:
                await super().write_bytes(writer, conn, content_length)
                return
            error = aiohttp.ClientConnectionError("not sent, this replica leads no more")
            conn.protocol.set_exception(error)

    return Permitted


def _selected(namespace: str | None, selector: str = "") -> dict[str, str]:
    query = {"labelSelector": selector} if selector else {}
    return query if namespace is not None else {**query, "fieldSelector": OUTSIDE_SYSTEM}


def _said(payload: bytes) -> tuple[str, tuple[str, ...]]:
    """The message of a `Status` object, and the fields that it names."""
    try:
        answer = json.loads(payload)
        said = str(answer["message"])
        causes = listed(section(answer, "details"), "causes")
        return said, tuple(str(cause.get("field", "")) for cause in causes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # no such object, but the apiserver's front
        return payload[:500].decode(errors="replace"), ()


def _raise_for(status: int, payload: bytes, what: str) -> None:
    if status < 300:  # noqa: PLR2004 - HTTP: success
        return
    said, fields = _said(payload)
    message = f"{what}: {status} {said}"
    denied = _DENIED.match(said) is not None
    if unheard(status) and (denied or _UNCALLED in said):
        raise WebhookError(message, status)
    if denied:
        raise RefusedError(message, status, fields)
    if status == 409 or _ANOTHER_UID in message:  # noqa: PLR2004 - HTTP: conflict
        raise ConflictError(message, status)
    if _NAMESPACE_GOING in message:
        raise NamespaceGoingError(message, status)
    if "cannot" in message.partition("is forbidden: User")[2]:
        raise NotPermittedError(message, status)
    if status in _REFUSALS:
        raise RefusedError(message, status, fields)
    raise ApplyError(message, status)
