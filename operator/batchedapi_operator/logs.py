"""Log lines: a constant event and its facts, as one JSON object or as text."""

import enum
import json
import logging
from datetime import UTC, datetime
from typing import Final, assert_never

from batchedapi_core.redaction import for_people

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OBJECT_REFERENCE: Final = "k8s_ref"
"""kopf's own extra: which object its handler ran for."""


class LogFormat(enum.StrEnum):
    """How a log line is written."""

    JSON = "json"
    TEXT = "text"


def _facts(record: logging.LogRecord) -> dict[str, object]:
    skipped = _STANDARD | {_OBJECT_REFERENCE, "settings"}
    return {name: value for name, value in vars(record).items() if name not in skipped}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return for_people(json.dumps(line, default=str))


class TerminalFormatter(logging.Formatter):
    """For reading in a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        return for_people(f"{super().format(record)} {facts}".rstrip())


def set_up(level: str, style: LogFormat) -> None:
    """Send every logger's lines to stderr; kopf's and aiohttp's only from WARNING on."""
    handler = logging.StreamHandler()
    match style:
        case LogFormat.JSON:
            handler.setFormatter(JsonFormatter())
        case LogFormat.TEXT:
            handler.setFormatter(TerminalFormatter())
        case _:
            assert_never(style)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        for name in ("kopf", "aiohttp", "kubernetes"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # It warns that it does not handle signals, which are not its business here.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
