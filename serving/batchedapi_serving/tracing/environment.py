"""What the standard variables of OpenTelemetry ask for, as settings; nothing else turns tracing on.

They are those of the replica's own environment and of `spec.predictor.env`, as the specification
has them: OTEL_EXPORTER_OTLP_* say where spans go, OTEL_TRACES_SAMPLER which requests have any,
OTEL_BSP_* how many wait how long, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES who sends them.
"""

import importlib.util
import math
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Final

from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import TracingSettings

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
_TRACES_PATH: Final = "v1/traces"
_PROTOCOL: Final = "http/protobuf"
_SAMPLERS: Final = {
    # Follows the caller's decision; share of the traces that begin here (None: SAMPLER_ARG).
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
_MOST_QUEUED: Final = 8192
_MOST_SENT: Final = 4096
"""Not the specification's 2048 and 512: what a request costs is nearly the same (decision 63)."""
_NEEDED: Final = ("opentelemetry.proto.collector.trace.v1", "httpx")
"""What the extra brings."""


def tracing_settings(
    environment: Mapping[str, str], api_name: str, instance: str | None = None
) -> TracingSettings | None:
    """What to trace and where to send it; None: no endpoint is named, or tracing is turned off.

    Args:
        environment: Of the replica, with the manifest's own on top.
        api_name: What the service is called if nothing else is said.
        instance: What this replica is called; None: its host name, a pod's own.

    Raises:
        LoadError: a variable says what cannot be done here; the message says which, and what can.
    """
    asked = {name: value.strip() for name, value in environment.items() if value.strip()}
    endpoint = asked.get(f"{_TRACES}ENDPOINT")
    base = asked.get(f"{_OTLP}ENDPOINT")
    exporters = asked.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    disabled = asked.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or exporters == ["none"] or (endpoint is None and base is None):
        return None
    if "otlp" not in exporters:
        raise _refused("OTEL_TRACES_EXPORTER", "otlp or none", ",".join(exporters))
    follows, ratio = _sampler(asked)
    if not follows and not ratio:
        return None
    protocol = _otlp(asked, "PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        raise _refused(
            f"{_TRACES}PROTOCOL", f"{_PROTOCOL}, for which collectors listen on port 4318", protocol
        )
    compression = _otlp(asked, "COMPRESSION") or "none"
    if compression not in {"none", "gzip"}:
        raise _refused(f"{_TRACES}COMPRESSION", "none or gzip", compression)
    resource = _pairs(asked, "OTEL_RESOURCE_ATTRIBUTES")
    resource.setdefault("service.name", api_name)
    resource.setdefault("service.instance.id", instance or socket.gethostname())
    if "OTEL_SERVICE_NAME" in asked:
        resource["service.name"] = asked["OTEL_SERVICE_NAME"]
    headers = _pairs(asked, f"{_TRACES}HEADERS") or _pairs(asked, f"{_OTLP}HEADERS")
    most_queued = int(_number(asked, "OTEL_BSP_MAX_QUEUE_SIZE", _MOST_QUEUED))
    url = endpoint or base or ""
    if not _is_http(url):
        # A password may be in it, and without a scheme nobody can tell where.
        got = url if "://" in url or "@" not in url else f"{len(url)} characters without ://"
        raise _refused(f"{_OTLP}ENDPOINT", "http://HOST:4318 or https://...", got)
    return TracingSettings(
        endpoint=url if endpoint else f"{url.rstrip('/')}/{_TRACES_PATH}",
        headers=tuple(headers.items()),
        timeout=_number(asked, _which(asked, "TIMEOUT"), 10),
        gzip=compression == "gzip",
        certificate=_otlp(asked, "CERTIFICATE"),
        client_certificate=_otlp(asked, "CLIENT_CERTIFICATE"),
        client_key=_otlp(asked, "CLIENT_KEY"),
        ratio=ratio,
        follows_parent=follows,
        resource=tuple(resource.items()),
        delay=_number(asked, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
        most_queued=most_queued,
        most_sent=min(
            most_queued, int(_number(asked, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _MOST_SENT))
        ),
    )


def check_installed() -> None:
    """That what tracing needs is here.

    Raises:
        LoadError: it is not; says how it gets here.
    """
    for name in _NEEDED:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # a package that it lies in
            found = None
        if found is None:
            raise LoadError(
                "InitFailed",
                f"{_OTLP}ENDPOINT asks for traces, and {name} is not installed: pip install"
                " 'batchedapi[serving,otel]', or set OTEL_TRACES_EXPORTER=none",
            )


def tls_of(settings: TracingSettings) -> ssl.SSLContext | None:
    """Whom we trust at the endpoint, and who we are there; None: no TLS is spoken.

    Raises:
        LoadError: a file cannot be read, or has no certificate or key in PEM.
    """
    if urllib.parse.urlsplit(settings.endpoint).scheme != "https":
        return None
    what, files = "CERTIFICATE", [settings.certificate]
    try:
        context = ssl.create_default_context(cafile=settings.certificate)
        if settings.client_certificate is not None:
            what = "CLIENT_CERTIFICATE and _CLIENT_KEY"
            files = [settings.client_certificate, settings.client_key]
            # Without a password it would ask for one on the terminal.
            context.load_cert_chain(settings.client_certificate, settings.client_key, password="")
    except OSError as error:  # as ssl's own are
        named = ", ".join(file for file in files if file is not None)
        got = f"{named} ({error.strerror or error})"
        raise _refused(f"{_OTLP}[TRACES_]{what}", "PEM that can be read", got) from error
    return context


def _is_http(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    try:
        parts.port  # noqa: B018 - raises what is wrong with it
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def _sampler(asked: Mapping[str, str]) -> tuple[bool, float]:
    """Whether the caller's decision is followed, and the share of other requests."""
    name = asked.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if name not in _SAMPLERS:
        raise _refused("OTEL_TRACES_SAMPLER", f"one of {', '.join(_SAMPLERS)}", name)
    follows, ratio = _SAMPLERS[name]
    if ratio is None:
        ratio = _number(asked, "OTEL_TRACES_SAMPLER_ARG", 1.0, least=0.0, most=1.0)
    return follows, ratio


def _which(asked: Mapping[str, str], name: str) -> str:
    """The variable that says it: the one for traces alone, before that for everything."""
    own = f"{_TRACES}{name}"
    return own if own in asked else f"{_OTLP}{name}"


def _otlp(asked: Mapping[str, str], name: str) -> str | None:
    return asked.get(_which(asked, name))


def _pairs(asked: Mapping[str, str], name: str) -> dict[str, str]:
    """`key=value,key=value`, values percent-encoded."""
    pairs = {}
    for part in asked.get(name, "").split(","):
        key, separator, value = part.partition("=")
        if separator and key.strip():
            pairs[key.strip()] = urllib.parse.unquote(value.strip())
        elif part.strip():
            raise _refused(name, "key=value,key=value", part.strip())
    return pairs


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
    if not least <= value <= most:
        limits = f"a number >= {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise _refused(name, limits, text)
    return value


def _refused(name: str, expected: str, got: str) -> LoadError:
    """A header may be a secret: no more of a value is told than says where it is wrong."""
    shown = got if "HEADERS" not in name else f"{len(got)} characters without ="
    return LoadError(
        "InitFailed",
        f"{name}: expected {expected}, got {shown!r}; OTEL_TRACES_EXPORTER=none turns tracing off",
    )
