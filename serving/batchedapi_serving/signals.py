"""SIGTERM and Ctrl+C in a command: end at once, wait, or raise.

An exception that a handler raises may be lost: Python ignores those of callbacks and finalizers,
and an import may turn one into another. So a server never depends on one.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def signals_end() -> None:
    """Just end on a signal, from now on: there is nothing to put away.

    As process 1 of a container a program without a handler for SIGTERM does not get it at all: a
    pod deleted while this one is still importing would wait for its whole grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    signals_heard()


def signals_raise() -> None:
    """Raise SystemExit or KeyboardInterrupt on a signal, from now on: a command puts away."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Within, a signal waits for `signals_heard`, at the latest for the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signals_heard()


def signals_heard() -> None:
    """Let those come that waited; our image has them wait while the interpreter starts, too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
