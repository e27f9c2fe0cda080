"""`batchedapi web` and `batchedapi worker`, and the Redis between them."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, Redis, ServerSideBatching
from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import QueueSettings, ReplicaSettings, Role

log = logging.getLogger(__name__)

_PORTS: Final = range(1, 65536)
_PATH: Final = "spec.serverSideBatching.queue.redis"


def queue_settings(
    batching: ServerSideBatching, role: Role, environment: Mapping[str, str]
) -> QueueSettings | None:
    """Where the queue of all replicas is; None: requests wait in the replica.

    A role of its own turns it on as the manifest does; the environment fills what is not said, and
    alone turns nothing on.

    Raises:
        LoadError: the password, or the user, is in a Secret, and there is no cluster here.
        ManifestError: a variable is not what it must be.
    """
    if batching.queue is None and role is Role.REPLICA:
        return None
    written = Redis() if batching.queue is None else batching.queue.redis
    _check_secrets(written, environment)
    port = _number(contract.ENV_REDIS_PORT, environment, contract.DEFAULT_REDIS_PORT)
    if port not in _PORTS:
        raise ManifestError((f"environment variable {contract.ENV_REDIS_PORT}: no port is {port}",))
    db = _number(contract.ENV_REDIS_DB, environment, 0)
    host = environment.get(contract.ENV_REDIS_HOST) or contract.DEFAULT_REDIS_HOST
    return QueueSettings(
        host=written.host or host,
        port=port if written.port is None else written.port,
        db=db if written.db is None else written.db,
        tls=written.tls,
        username=environment.get(contract.ENV_REDIS_USERNAME) or None,
        password=environment.get(contract.ENV_REDIS_PASSWORD) or None,
        prefix=written.prefix or "",
        max_length=written.max_length,
    )


def _check_secrets(written: Redis, environment: Mapping[str, str]) -> None:
    for secret, name, variable in (
        (written.username_secret, "usernameSecret", contract.ENV_REDIS_USERNAME),
        (written.password_secret, "passwordSecret", contract.ENV_REDIS_PASSWORD),
    ):
        if secret is not None and variable not in environment:
            raise LoadError(
                "InitFailed",
                f"{_PATH}.{name}: a cluster fills in {variable} from it, and there is none here;"
                f" set it yourself, {variable}=... before the command",
            )


def _number(name: str, environment: Mapping[str, str], default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ManifestError((f"environment variable {name}: expected a number, got {text!r}",))
    return int(text)


def check_queue(settings: ReplicaSettings) -> None:
    """Refuse a Redis that may lose rows before anything is started; one that is away may come.

    Raises:
        LoadError: it must not be used, or its client is not installed; says what to do.
    """
    if settings.queue is None:
        return
    try:
        from batchedapi_serving.queue.broker import Broker, BrokerDownError, BrokerUnfitError  # noqa: PLC0415 - where there is a queue
    except ImportError as error:
        raise LoadError(
            "InitFailed", f"spec.serverSideBatching.queue: {error}; pip install 'batchedapi[redis]'"
        ) from error
    broker = Broker(settings.queue, settings.name)

    async def connect() -> None:
        try:
            await broker.connect()
        finally:
            await broker.close()

    try:
        asyncio.run(connect())
    except BrokerUnfitError as error:
        raise LoadError("InitFailed", f"spec.serverSideBatching.queue: Redis at {error}") from error
    except BrokerDownError as error:
        where = f"{settings.queue.host}:{settings.queue.port}"
        log.warning("redis does not answer yet", extra={"redis": where, "error": str(error)})
