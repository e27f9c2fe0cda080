"""Log lines of every process of a replica: a constant event with facts, as JSON or as text."""

import logging
import os
import sys
import traceback
from typing import Final

from pythonjsonlogger.json import JsonFormatter

LOG_FORMAT: Final = "BATCHEDAPI_LOG_FORMAT"
"""Environment variable: `json` or `text`; absent: text on a terminal, else JSON."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "role"}


class TextFormatter(logging.Formatter):
    """`12:00:01 info  web  ready lanes=1 max_batch_size=32`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, facts behind the event; a traceback below it."""
        facts = " ".join(f"{k}={v}" for k, v in vars(record).items() if k not in _STANDARD)
        role = getattr(record, "role", "")
        line = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {role:10}"
            f" {record.getMessage()} {facts}"
        )
        return (
            f"{line.rstrip()}\n{self.formatException(record.exc_info)}"
            if record.exc_info
            else line.rstrip()
        )


def configure_logging(level: str, role: str) -> None:
    """Log to standard error from now on.

    Args:
        level: debug, info, warning or error.
        role: Which process writes, e.g. `web` or `model-0`.
    """
    handler = logging.StreamHandler(sys.stderr)
    default = "text" if sys.stderr.isatty() else "json"
    if os.environ.get(LOG_FORMAT, default) == "json":
        handler.setFormatter(
            JsonFormatter(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
                static_fields={"role": role},
            )
        )
    else:
        handler.setFormatter(TextFormatter())
        handler.addFilter(_RoleFilter(role))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # It warns of each form that is wrong, which is told to the client.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def name_of(error: BaseException) -> str:
    """Name of its class, whose metaclass may say anything."""
    return str.__str__(type.__dict__["__name__"].__get__(type(error)))


def summary_of(error: BaseException, most: int = 1000) -> str:
    """Its type and its text, as the last line of a traceback has them: so many characters."""
    try:
        told = traceback.TracebackException.from_exception(error, limit=0, compact=True)
        told.__notes__ = None
        return list(told.format_exception_only())[-1].strip()[:most]
    except BaseException:  # noqa: BLE001 - user code: anything may be raised
        return name_of(error)


def traceback_of(error: BaseException) -> str:
    """The text of its traceback, or why there is none: its class may define anything."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as another:  # noqa: BLE001 - user code: anything may be raised
        return f"{name_of(error)}, which raises {name_of(another)} where it is looked at"


class _RoleFilter(logging.Filter):
    """Tells every record which process writes it."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def filter(self, record: logging.LogRecord) -> bool:
        record.role = self._role
        return True
