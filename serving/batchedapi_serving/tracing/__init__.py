"""Traces of requests, on their way to a collector of OpenTelemetry's.

`environment` reads the variables, `spans` keeps spans in flight, and `sending` gives those that are
over to OpenTelemetry's SDK. Only `sending` imports the SDK, and only a replica that traces imports
`sending`.
"""

from collections.abc import Awaitable, Callable

from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing.spans import Tracer


def started_tracer(
    settings: TracingSettings | None, dropped: Callable[[int], None]
) -> tuple[Tracer | None, Callable[[], Awaitable[None]]]:
    """Begin to trace in this process: the tracer, and a call that sends its last spans.

    None: nobody asked for traces. `dropped` counts spans that nobody will see.
    """
    if settings is None:
        return None, _nothing
    from batchedapi_serving.tracing.sending import Exporter  # noqa: PLC0415 - an extra, seldom asked for

    exporter = Exporter(settings, dropped)
    tracer = Tracer(settings.ratio, exporter.finished, follows_parent=settings.follows_parent)
    return tracer, exporter.close


async def _nothing() -> None:
    """There is nothing to send."""
