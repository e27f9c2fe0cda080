"""What the standard variables of OpenTelemetry ask for."""

import ssl
from pathlib import Path

import pytest

from batchedapi_serving.errors import LoadError
from batchedapi_serving.settings import TracingSettings
from batchedapi_serving.tracing import environment
from batchedapi_serving.tracing.environment import check_installed, tls_of, tracing_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def settings(**variables: str) -> TracingSettings | None:
    """Of a replica of the API `iris` with these variables and an endpoint."""
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


def test_the_defaults_are_those_of_the_specification() -> None:
    """Who reads it there finds it here: every request, unless its caller says otherwise.

    More spans are queued and sent at once than there: 2,048 and 512.
    """
    found = asked()

    assert "http://collector:4318/v1/traces" == found.endpoint
    assert (1.0, True) == (found.ratio, found.follows_parent)
    assert (10.0, 5.0, 8192, 4096) == (
        found.timeout, found.delay, found.most_queued, found.most_sent,
    )  # fmt: skip
    assert (("service.name", "iris"), ("service.instance.id", "iris-0")) == found.resource
    assert ((), False, None) == (found.headers, found.gzip, found.certificate)


def test_what_is_said_of_traces_alone_goes_before_what_is_said_of_all() -> None:
    """The endpoint of traces is the whole address, as the specification has it."""
    found = asked(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="https://traces.example/otlp",
        OTEL_EXPORTER_OTLP_HEADERS="a=1",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=Bearer%20x, b=2",
        OTEL_EXPORTER_OTLP_TIMEOUT="3",
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="4",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_CERTIFICATE="/ca.pem",
    )

    assert "https://traces.example/otlp" == found.endpoint
    assert (("authorization", "Bearer x"), ("b", "2")) == found.headers
    assert (4.0, True, "/ca.pem") == (found.timeout, found.gzip, found.certificate)


def test_a_service_is_named_by_its_own_variable_before_the_attributes() -> None:
    """And what else the attributes say stays."""
    found = asked(
        OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="service.name=other,team=a%2Cb"
    )

    expected = {"service.name": "mine", "team": "a,b", "service.instance.id": "iris-0"}
    assert expected == dict(found.resource)


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
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "none or gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "a number >= 1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://HOST:4318"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a number >= 1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team", "key=value"),
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
    """As with headers."""
    with pytest.raises(LoadError) as raised:
        settings(OTEL_EXPORTER_OTLP_ENDPOINT=url)

    assert "s3cr3t" not in str(raised.value)
    assert "ENDPOINT" in str(raised.value)


def test_a_wrong_header_is_not_repeated() -> None:
    """It may be a key, and messages go into logs and statuses."""
    with pytest.raises(LoadError) as raised:
        settings(OTEL_EXPORTER_OTLP_HEADERS="my-secret-key")

    assert "my-secret-key" not in str(raised.value)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(raised.value)


def test_a_missing_extra_is_a_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a stack trace of an import somewhere in a web process."""
    check_installed()
    monkeypatch.setattr(environment, "_NEEDED", ("nowhere.to.be.found",))

    with pytest.raises(LoadError, match=r"pip install 'batchedapi\[serving,otel\]'"):
        check_installed()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_[TRACES_]CERTIFICATE: expected PEM"),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            "CLIENT_CERTIFICATE and _CLIENT_KEY: expected PEM",
        ),
    ],
)
@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_cannot_be_read_is_a_sentence(
    tmp_path: Path, name: str, told: str, text: str | None
) -> None:
    """It names the variable and the file; in a web process it would be a crash loop."""
    file = tmp_path / "file.pem"
    if text is not None:
        file.write_text(text)
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318"}
    found = asked(**endpoint, **{name: str(file)})

    with pytest.raises(LoadError) as raised:
        tls_of(found)

    assert told in str(raised.value)
    assert str(file) in str(raised.value)


def test_without_tls_no_file_is_looked_at() -> None:
    """As curl does: the same variables may be set for everybody."""
    assert tls_of(asked(OTEL_EXPORTER_OTLP_CERTIFICATE="/nowhere")) is None


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_whoever_speaks_tls_is_verified_however_the_scheme_is_written(scheme: str) -> None:
    """A scheme has no case: RFC 3986, 3.1."""
    found = tls_of(asked(OTEL_EXPORTER_OTLP_ENDPOINT=f"{scheme}://collector:4318"))

    assert found is not None
    assert (ssl.CERT_REQUIRED, True) == (found.verify_mode, found.check_hostname)


@pytest.mark.parametrize("port", ["port", "99999", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """At the start, not with each request to a collector that is never reached."""
    with pytest.raises(LoadError, match="ENDPOINT: expected http://HOST:4318"):
        asked(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://collector:{port}")
