"""Log lines: a constant event with facts."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from batchedapi_serving.logs import LOG_FORMAT, TextFormatter, configure_logging
from odd_texts import ODD_TEXTS, Unspeakable


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave the root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def logged(monkeypatch: pytest.MonkeyPatch, log_format: str | None) -> str:
    """The log line of one event."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    if log_format is None:
        monkeypatch.delenv(LOG_FORMAT, raising=False)
    else:
        monkeypatch.setenv(LOG_FORMAT, log_format)
    configure_logging("info", "web")
    logging.getLogger("x").debug("not written")
    logging.getLogger("x").info("ready", extra={"lanes": 2})
    return stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", None])
def test_without_a_terminal_lines_are_json(
    monkeypatch: pytest.MonkeyPatch, log_format: str | None
) -> None:
    """One object a line, which is what log collectors read."""
    line = json.loads(logged(monkeypatch, log_format))

    expected = {"level": "INFO", "logger": "x", "message": "ready", "lanes": 2, "role": "web"}
    assert expected == {key: line[key] for key in expected}
    assert "time" in line


def test_text_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event first, facts behind it."""
    line = logged(monkeypatch, "text")

    assert line.split(" ", 1)[1].split() == ["info", "web", "ready", "lanes=2"]


def test_a_traceback_stands_below_its_line() -> None:
    """It is the one thing that needs more than a line."""
    try:
        sys.modules["x"]
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), sys.exc_info())

    first, *rest = TextFormatter().format(record).splitlines()

    assert first.endswith("failed")
    assert rest[-1] == "KeyError: 'x'"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_our_lines_have_no_passwords_of_urls(
    monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    """In the event, in a fact and in a traceback; a predictor's own lines are its own."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(LOG_FORMAT, log_format)
    configure_logging("info", "web")
    url = "https://me:s3cr3t@host:1/path?X-Signature=s3cr3t"
    facts = {"endpoint": url, "error": repr(OSError(url))}
    try:
        float(url)
    except ValueError:
        logging.getLogger("batchedapi_serving.x").exception("no %s", url, extra=facts)
    ours = stream.getvalue()
    logging.getLogger("model").info(url)

    assert "s3cr3t" not in ours
    assert 4 == ours.count("https://***@host:1/path?***")
    assert url in stream.getvalue()[len(ours) :]


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_any_text_is_a_line_and_no_command_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, log_format: str, text: str
) -> None:
    """It may be a client's or a user's."""
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(LOG_FORMAT, log_format)
    configure_logging("info", "web")

    logging.getLogger("batchedapi_serving.x").info("it is %s", text, extra={"why": text})

    stream.flush()
    stream.seek(0)
    line = stream.read()
    assert line
    if log_format == "json":
        assert text == json.loads(line)["why"]
    else:
        assert not set(line) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_has_no_text_costs_its_line_and_is_told(
    monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    """Whoever logs goes on; the reason and the place are on standard error."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(LOG_FORMAT, log_format)
    configure_logging("info", "web")

    logging.getLogger("x").info("it is %s", Unspeakable())
    logging.getLogger("x").info("ready", extra={"fact": Unspeakable()})
    logging.getLogger("x").info("failed", exc_info=Unspeakable())

    assert "Logging error" in stream.getvalue()
    assert "failed" in stream.getvalue()
