"""How the operator process is set up: flags first, then the environment, then the defaults."""

import enum
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from batchedapi_core import contract

DISTRIBUTION: Final = "batchedapi"
DEFAULT_ADMIN_PORT: Final = 8081
PATH_DECISIONS: Final = "/decisions"
"""On the decisions port, before /NAMESPACE/NAME: the last decisions about that API."""


class LogFormat(enum.StrEnum):
    """How a log line is written."""

    JSON = "json"
    TEXT = "text"


def default_serving_image() -> str:
    """The serving image of the same release as this operator."""
    return f"batchedapi-serving:{version(DISTRIBUTION)}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user may set on the operator."""

    serving_image: str
    """For APIs whose manifest names none; an unchanged revision keeps the image it has."""
    watch_namespace: str | None = None
    """None: every namespace."""
    log_level: str = "info"
    log_format: LogFormat = LogFormat.JSON
    admin_host: str = ""
    """Empty: every interface, IPv4 and IPv6."""
    admin_port: int = DEFAULT_ADMIN_PORT
    decisions_port: int = contract.OPERATOR_DECISIONS_PORT
    """Always on loopback."""
