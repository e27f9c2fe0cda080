"""Events, as the apiserver takes them."""

from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.events import NOTE_LENGTH, Note, build_event

KEY = ObjectKey("default", "iris")


def test_a_note_is_as_long_as_the_apiserver_takes_it_which_counts_bytes() -> None:
    """Refusals repeat the manifest's text, whatever alphabet it is in."""
    note = Note("Warning", "Invalid", "Reconcile", "ü" * 2000)

    event = build_event(note, KEY, "uid", "2026-01-01T00:00:00.000000Z", "1")

    assert NOTE_LENGTH == len(event["note"].encode())
    assert set(event["note"]) == {"ü"}


def test_a_note_has_no_password() -> None:
    """A replica's message may hold a URL of its manifest; whoever may read events reads it."""
    note = Note("Warning", "ModelFailed", "Reconcile", "got https://me:s3cr3t@host/a?sig=s3cr3t")

    event = build_event(note, KEY, "uid", "2026-01-01T00:00:00.000000Z", "1")

    assert "got https://***@host/a?***" == event["note"]


def test_a_character_is_not_cut_in_two() -> None:
    """Half of one is no text."""
    note = Note("Warning", "Invalid", "Reconcile", "a" + "ü" * 2000)

    event = build_event(note, KEY, "uid", "2026-01-01T00:00:00.000000Z", "1")

    assert "a" + "ü" * 511 == event["note"]
