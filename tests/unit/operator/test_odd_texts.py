"""Texts of users and of their pods, as the operator writes them: no text ends a loop or a write."""

import json
import logging
from typing import Any

import pytest
import yaml
from tests.unit.operator.test_hindrances import ended, pod

from batchedapi_core.manifest import ConditionType
from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.events import NOTE_LENGTH, Note, build_event
from batchedapi_operator.kube import _raise_for, as_yaml
from batchedapi_operator.logs import JsonFormatter, TerminalFormatter
from batchedapi_operator.reconcile.conditions import (
    MESSAGE_LENGTH,
    NewCondition,
    dated,
    load_failure,
)
from batchedapi_operator.views import PodView
from odd_texts import ODD_TEXTS

DEEP = "[" * 4000
"""A text for which json.loads raises what is no ValueError."""
TEXTS = {
    **ODD_TEXTS,
    "deep": DEEP,
    "a reason of no kind": '{"reason": [1], "message": {"a": "\ud800"}}',
}
BY_KIND = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@BY_KIND
def test_any_text_is_a_note_that_the_apiserver_takes(text: str) -> None:
    """Half a surrogate made of an event a write that was tried again and again."""
    event = build_event(Note("Warning", "Failed", "Act", text), ObjectKey("a", "b"), "uid", "", "1")

    assert len(event["note"].encode()) <= NOTE_LENGTH


@BY_KIND
def test_any_text_is_applied_alike_as_json_and_as_yaml(text: str) -> None:
    """Half a surrogate would be an error of YAML, for the whole status."""
    sent = as_yaml({"message": text})

    assert json.loads(sent) == yaml.safe_load(sent)
    sent.decode()


@BY_KIND
def test_whatever_a_process_says_at_its_end_is_a_reason_of_ours(text: str) -> None:
    """User code may write there: a text that cannot be read is the tail of a log."""
    body = pod({"name": "serving", "state": ended(1, message=text)})

    found = load_failure(PodView.of(body))

    assert found is not None
    assert "CrashLooping" == found[0]
    assert len(found[1]) <= len(text) + MESSAGE_LENGTH


@BY_KIND
def test_an_answer_of_whoever_stands_before_the_apiserver_is_an_error_in_words(text: str) -> None:
    """Also where its JSON is of another kind than the apiserver's."""
    bodies: list[Any] = [text, [text], {"message": text}, {"message": 5, "details": text}]

    for payload in (text.encode("utf-8", "replace"), *(json.dumps(b).encode() for b in bodies)):
        with pytest.raises(ApplyError, match=r"^get it: 400 "):
            _raise_for(400, payload, "get it")


@BY_KIND
def test_any_text_is_a_log_line_and_no_command_of_a_terminal(text: str) -> None:
    """Lines of JSON are one each; lines for people have no control characters but line ends."""
    record = logging.makeLogRecord({"msg": "it is %s", "args": (text,), "why": text})

    line = JsonFormatter().format(record)
    shown = TerminalFormatter().format(record)

    assert line.isascii()
    assert "\n" not in line
    assert text == json.loads(line)["why"]
    assert not set(shown) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}


@BY_KIND
def test_any_text_of_a_pod_is_a_message_of_the_status(text: str) -> None:
    """Terminal control characters are escaped where they are written, for kubectl and for ours."""
    condition = NewCondition(ConditionType.MODEL_LOADED, "False", "CrashLooping", text)

    (one,) = dated([condition], (), 1, "2026-01-01T00:00:00Z")

    assert len(one["message"]) <= MESSAGE_LENGTH
    assert json.loads(as_yaml(one))["message"] == one["message"]
    assert "\x1b" not in one["message"]
