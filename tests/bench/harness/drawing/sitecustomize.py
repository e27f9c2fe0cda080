"""Lets a signal say which share of the requests is drawn for a trace; on the path of web processes.

SIGRTMIN: none, SIGRTMIN + 1: as the environment has it. So what tracing costs is seen within one
process, whose memory lies as it lies, whatever it does.
"""

import signal
import sys
from collections.abc import Awaitable, Callable

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.spans import Tracer


def _obey(tracer: Tracer) -> None:
    asked = tracer._ratio

    def draw(number: int, _: object) -> None:
        tracer._ratio = asked if number > signal.SIGRTMIN else 0.0
        tracer._gaps.clear()
        tracer.undrawn = 0.0  # one more is drawn, and then the share holds

    for number in (signal.SIGRTMIN, signal.SIGRTMIN + 1):
        signal.signal(number, draw)


if "batchedapi_serving.web_process" in sys.orig_argv:
    from batchedapi_serving.tracing import otlp

    _made = otlp.exporting_tracer

    def _exporting_tracer(
        settings: TracingSettings, dropped: Callable[[int], None]
    ) -> tuple[Tracer, Callable[[], Awaitable[None]]]:
        tracer, end = _made(settings, dropped)
        _obey(tracer)
        return tracer, end

    otlp.exporting_tracer = _exporting_tracer
