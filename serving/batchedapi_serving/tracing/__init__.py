"""Traces of requests, on their way to a collector of OpenTelemetry's.

`environment` says what was asked for, `spans` what a span is and who has one, `otlp` sends them.
Only `otlp` imports what the extra `otel` brings, and only a replica that traces imports it.
"""

from collections.abc import Awaitable, Callable

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.spans import Tracer


def started_tracer(
    settings: TracingSettings | None, dropped: Callable[[int], None]
) -> tuple[Tracer | None, Callable[[], Awaitable[None]]]:
    """What begins spans in this process, and what sends the last of them.

    None: nobody asked for traces. `dropped` counts spans that nobody will see.
    """
    if settings is None:
        return None, _nothing
    from batchedapi_serving.tracing.otlp import exporting_tracer  # noqa: PLC0415 - an extra, seldom asked for

    return exporting_tracer(settings, dropped)


async def _nothing() -> None:
    """There is nothing to send."""
