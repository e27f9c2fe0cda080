"""Log lines of every process of a replica: a constant event with facts, as JSON or as text.

What cannot be written is lost, and nothing else with it.
"""

import contextlib
import ctypes
import io
import logging
import os
import sys
import traceback
from typing import Any, Final, TextIO

from pythonjsonlogger.json import JsonFormatter

from batchedapi_core.redaction import for_people

LOG_FORMAT: Final = "BATCHEDAPI_LOG_FORMAT"
"""Environment variable: `json` or `text`; absent: text on a terminal, else JSON."""
_OURS: Final = ("batchedapi_", "__main__", "asyncio")
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
        behind = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return _shown(record, line.rstrip() + behind)


class _JsonFormatter(JsonFormatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _shown(record, super().format(record))


def _shown(record: logging.LogRecord, line: str) -> str:
    """Lines of a predictor's own logger are shown as they are."""
    return for_people(line) if record.name.startswith(_OURS) else line


class _Descriptor(io.RawIOBase):
    """A descriptor to which writing never fails.

    A disk that is full, or a reader that has gone, would else be an error of whatever user code
    printed, and so of a request.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        length = len(rest)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return length


def _at_once(stream: TextIO, descriptor: int) -> TextIO:
    """Standard output or error, line by line; another stream in its place is left as it is."""
    if stream not in {sys.__stdout__, sys.__stderr__}:
        return stream
    stream.flush()
    return _unbuffered(descriptor, stream.encoding)


def _unbuffered(descriptor: int, encoding: str) -> TextIO:
    return io.TextIOWrapper(  # type: ignore[type-var]  # raw, as Python has it with -u
        _Descriptor(descriptor), encoding, "backslashreplace", line_buffering=True
    )


_LINES: Final = 1
"""The C library's _IOLBF."""


def say_at_once() -> None:
    """Have what is printed, by Python and by the C library, in the log with the end of its line.

    Both keep it for themselves where standard output is no terminal, and a process that is killed
    never says it.
    """
    sys.stdout, sys.stderr = _at_once(sys.stdout, 1), _at_once(sys.stderr, 2)
    with contextlib.suppress(ValueError, AttributeError):  # a C library that calls it otherwise
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINES, ctypes.c_size_t(0))


def configure_logging(level: str, role: str) -> None:
    """Log to standard error from now on.

    Args:
        role: Which process writes, e.g. `web` or `model-0`.
    """
    say_at_once()
    handler = logging.StreamHandler(sys.stderr)
    default = "text" if sys.stderr.isatty() else "json"
    if os.environ.get(LOG_FORMAT, default) == "json":
        handler.setFormatter(
            _JsonFormatter(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
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


class _OwnHandler(logging.StreamHandler[TextIO]):
    """A line that cannot be written is lost, and standard error is told nothing of it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging has it
        """See logging.Handler."""


class _OwnLogger(logging.Logger):
    """One whose records user code has no part in."""

    def makeRecord(self, *told: Any) -> logging.LogRecord:  # noqa: N802 - as logging has it
        *shown, extra, stack = told
        record = _Record(*shown)
        vars(record).update(extra or {}, stack_info=stack)
        return record


_Record: Final = logging.LogRecord
_OWN: Final = ("batchedapi_core", "batchedapi_serving")


def log_apart() -> None:
    """From now on nothing that user code makes of logging or of its streams reaches our lines.

    Our loggers leave the hierarchy that `logging` knows: `disable_existing_loggers`, another level
    or other handlers of the root, `logging.disable`, a factory of records. They write to where
    standard error is now. Those of libraries stay where user code expects them.
    """
    known = logging.getLogger()
    (handler,) = known.handlers
    apart = _OwnHandler(_unbuffered(os.dup(2), "utf-8"))
    apart.setFormatter(handler.formatter)
    apart.filters = handler.filters
    root = logging.RootLogger(known.level)
    root.addHandler(apart)
    manager = logging.Manager(root)
    for name, logger in list(known.manager.loggerDict.items()):
        if name.startswith(_OWN):
            del known.manager.loggerDict[name]
            if isinstance(logger, logging.Logger):
                logger.__class__ = _OwnLogger
                logger.parent, logger.manager = root, manager


def log_as(role: str, logger: logging.Logger) -> None:
    """From now on lines have another role: this process is a fork of the one that had the first.

    Args:
        logger: One of ours, after `log_apart`.
    """
    for handler in logger.parent.handlers if logger.parent is not None else ():
        handler.filters[:] = [_RoleFilter(role)]  # the list is the root's own handler's too


class _RoleFilter(logging.Filter):
    """Tells every record which process writes it."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def filter(self, record: logging.LogRecord) -> bool:
        record.role = self._role
        return True
