"""Settings from the standard variables of OpenTelemetry."""

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing import environment
from batchedapi_serving.tracing.environment import check_installed, tracing_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def settings(**variables: str) -> TracingSettings | None:
    """Settings of a replica of the API `iris` with these variables and an endpoint."""
    return tracing_settings({**ENDPOINT, **variables}, "iris", "iris-0")


def asked(**variables: str) -> TracingSettings:
    """The same where tracing is on."""
    found = settings(**variables)
    assert found is not None
    return found


def test_without_an_endpoint_nothing_is_traced() -> None:
    """Also where the other variables are set, as a platform's injector does."""
    assert tracing_settings({}, "iris") is None
    assert tracing_settings({"OTEL_TRACES_SAMPLER": "always_on"}, "iris") is None
    assert tracing_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, "iris") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
    ],
)
def test_it_is_turned_off_as_everywhere(name: str, value: str) -> None:
    """Whoever knows the variables expects nothing less."""
    assert settings(**{name: value}) is None


def test_the_sdk_is_given_what_was_asked_and_who_sends() -> None:
    """It reads them as everywhere; a replica's own names are those that nobody gave."""
    found = asked(
        OTEL_EXPORTER_OTLP_HEADERS="a=1", OTEL_RESOURCE_ATTRIBUTES="service.name=mine,team=a",
        OTEL_BSP_MAX_QUEUE_SIZE="100", HOME="/",
    )  # fmt: skip

    assert (1.0, True, 100) == (found.ratio, found.follows_parent, found.most_queued)
    assert {
        **ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_RESOURCE_ATTRIBUTES":
            "service.name=iris,service.instance.id=iris-0,service.name=mine,team=a",
        "OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100",
    } == dict(found.variables)  # fmt: skip


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("always_on", "0.1", (1.0, False)),
        ("traceidratio", "0.25", (0.25, False)),
        ("parentbased_traceidratio", "0.01", (0.01, True)),
        ("parentbased_traceidratio", "", (1.0, True)),
        ("parentbased_always_off", "", (0.0, True)),
    ],
)
def test_samplers(sampler: str, argument: str, expected: tuple[float, bool]) -> None:
    """All that the specification names and that need no further server."""
    found = asked(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)

    assert expected == (found.ratio, found.follows_parent)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "one of always_on, always_off"),
        ("OTEL_TRACES_SAMPLER_ARG", "1 %", "0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf, for which collectors listen on"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://HOST:4318"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a number >= 1"),
    ],
)
def test_what_cannot_be_done_is_said_at_the_start(name: str, value: str, expected: str) -> None:
    """With the variable, what it may be, what it is, and how to do without."""
    variables = {name: value, "OTEL_TRACES_SAMPLER": "traceidratio"} | {name: value}

    with pytest.raises(LoadError) as raised:
        settings(**variables)

    assert "InitFailed" == raised.value.reason
    for part in (expected, f"got {value!r}", "OTEL_TRACES_EXPORTER=none turns tracing off"):
        assert part in str(raised.value)


@pytest.mark.parametrize("url", ["me:s3cr3t@collector:4318", "ftp://me:s3cr3t@collector:4318"])
def test_a_password_in_an_endpoint_is_not_repeated(url: str) -> None:
    """Messages go into logs and statuses."""
    with pytest.raises(LoadError) as raised:
        settings(OTEL_EXPORTER_OTLP_ENDPOINT=url)

    assert "s3cr3t" not in str(raised.value)
    assert "ENDPOINT" in str(raised.value)


def test_a_missing_extra_is_a_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a stack trace of an import somewhere in a web process."""
    check_installed()
    monkeypatch.setattr(environment, "_EXTRA", "nowhere.to.be.found")

    with pytest.raises(LoadError, match=r"pip install 'batchedapi\[serving,otel\]'"):
        check_installed()


@pytest.mark.parametrize("port", ["port", "99999", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """At the start, not with each request to a collector that is never reached."""
    with pytest.raises(LoadError, match="ENDPOINT: expected http://HOST:4318"):
        asked(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://collector:{port}")
