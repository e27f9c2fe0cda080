"""The standard variables of OpenTelemetry, as settings; nothing else turns tracing on.

They are those of the replica's own environment and of `spec.predictor.env`. OpenTelemetry's SDK
reads them in each process that sends spans. Read here is only whether there is anything to send,
the share of requests that have spans, and values that the SDK would fail on or not obey.
"""

import importlib.util
import math
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Final

from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import TracingSettings

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
_PROTOCOL: Final = "http/protobuf"
_QUEUE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_BATCH: Final = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_SAMPLERS: Final = {
    # Follows the caller's decision; share of the traces that begin here (None: SAMPLER_ARG).
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
_EXTRA: Final = "opentelemetry.exporter.otlp.proto.http"
"""The last package of the extra; it needs the others."""


def tracing_settings(
    environment: Mapping[str, str], api_name: str, instance: str | None = None
) -> TracingSettings | None:
    """Read which requests to trace and where to send spans; None: tracing is off.

    Args:
        environment: Of the replica, with the manifest's own on top.
        instance: Name of this replica; None: its host name, a pod's own.

    Raises:
        LoadError: a variable asks for something that is not done here; the message has the remedy.
    """
    stripped = ((name, value.strip()) for name, value in environment.items())
    asked = {name: value for name, value in stripped if name.startswith("OTEL_") and value}
    endpoint = asked.get(f"{_TRACES}ENDPOINT", asked.get(f"{_OTLP}ENDPOINT"))
    exporters = asked.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    disabled = asked.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or exporters == ["none"] or endpoint is None:
        return None
    if "otlp" not in exporters:
        raise _refused("OTEL_TRACES_EXPORTER", "otlp or none", ",".join(exporters))
    follows, ratio = _sampling(asked)
    if not follows and not ratio:
        return None
    _check_endpoint(endpoint, asked)
    own = {"service.name": api_name, "service.instance.id": instance or socket.gethostname()}
    named = [f"{name}={urllib.parse.quote(value)}" for name, value in own.items()]
    named += filter(None, [asked.get(_ATTRIBUTES)])  # the last wins
    queued, sent = int(_number(asked, _QUEUE, 2048)), int(_number(asked, _BATCH, 512))
    told = {
        _QUEUE: str(queued),
        _BATCH: str(min(queued, sent)),  # the SDK refuses more
        _ATTRIBUTES: ",".join(named),
    }
    return TracingSettings(endpoint, ratio, follows, queued, tuple({**asked, **told}.items()))


def check_installed() -> None:
    """Look for the extra.

    Raises:
        LoadError: it is not installed; the message says how to install it.
    """
    try:
        found = importlib.util.find_spec(_EXTRA)
    except ModuleNotFoundError:  # a package that it lies in
        found = None
    if found is None:
        raise LoadError(
            "InitFailed",
            f"{_OTLP}ENDPOINT asks for traces, and {_EXTRA} is not installed: pip install"
            " 'batchedapi[serving,otel]', or set OTEL_TRACES_EXPORTER=none",
        )


def _sampling(asked: Mapping[str, str]) -> tuple[bool, float]:
    sampler = asked.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if sampler not in _SAMPLERS:
        raise _refused("OTEL_TRACES_SAMPLER", f"one of {', '.join(_SAMPLERS)}", sampler)
    follows, ratio = _SAMPLERS[sampler]
    if ratio is None:
        ratio = _number(asked, "OTEL_TRACES_SAMPLER_ARG", 1.0, least=0.0, most=1.0)
    return follows, ratio


def _check_endpoint(endpoint: str, asked: Mapping[str, str]) -> None:
    protocol = asked.get(f"{_TRACES}PROTOCOL") or asked.get(f"{_OTLP}PROTOCOL", _PROTOCOL)
    if protocol != _PROTOCOL:
        expected = f"{_PROTOCOL}, for which collectors listen on port 4318"
        raise _refused(f"{_TRACES}PROTOCOL", expected, protocol)
    if not _is_http(endpoint):
        # A password may be in it, and without a scheme nobody can tell where.
        plain = "://" in endpoint or "@" not in endpoint
        got = endpoint if plain else f"{len(endpoint)} characters without ://"
        raise _refused(f"{_OTLP}ENDPOINT", "http://HOST:4318 or https://...", got)


def _is_http(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    try:
        parts.port  # noqa: B018 - raises if it is none
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def _number(
    asked: Mapping[str, str], name: str, default: float, least: float = 1.0, most: float = math.inf
) -> float:
    text = asked.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or value == math.inf:
        limits = f"a number >= {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise _refused(name, limits, text)
    return value


def _refused(name: str, expected: str, got: str) -> LoadError:
    return LoadError(
        "InitFailed",
        f"{name}: expected {expected}, got {got!r}; OTEL_TRACES_EXPORTER=none turns tracing off",
    )
