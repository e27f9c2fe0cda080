"""Forms: fields and files by name, and what is said of those that are none."""

import pytest

from batchedapi_serving.codecs.forms import MOST_PARTS, is_form, parse_form
from batchedapi_serving.errors import ServingError
from batchedapi_serving.predictor import Upload

TYPE = b"multipart/form-data; boundary=abc"


def part(body: bytes, disposition: bytes = b'form-data; name="a"', more: bytes = b"") -> bytes:
    """One part, its boundary included."""
    return b"--abc\r\nContent-Disposition: %b\r\n%b\r\n%b\r\n" % (disposition, more, body)


END = b"--abc--\r\n"
FILE = b'form-data; name="f"; filename="x.png"'


def test_fields_are_text_and_files_are_uploads() -> None:
    """Bytes of a file stay as they are, line ends and boundaries of others included."""
    content = bytes(range(256)) + b"\r\n--abd\r\n--ab"
    body = part("\u00e9".encode()) + part(content, FILE, b"Content-Type: image/png\r\n") + END

    assert {"a": "\u00e9", "f": Upload("x.png", "image/png", content)} == parse_form(TYPE, body)


def test_a_name_that_comes_again_has_a_list() -> None:
    """As browsers send several files of one field."""
    body = part(b"1") + part(b"2") + part(b"3", b'form-data; name="a"; filename=""') + END

    assert {"a": ["1", "2", Upload("", "", b"3")]} == parse_form(TYPE, body)


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (TYPE, True),
        (b"Multipart/Form-Data;boundary=x", True),
        (b"multipart/mixed; boundary=x", False),
        (b"application/x-www-form-urlencoded", False),
        (b"", False),
    ],
)
def test_only_forms_with_parts_are_taken_apart(content_type: bytes, form: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Other types are the method's own."""
    assert form == is_form(content_type)


GOOD = part(b"hi") + END
WRONG = {
    "no boundary": (b"multipart/form-data", GOOD, 400, "header Content-Type"),
    "an empty boundary": (b'multipart/form-data; boundary=""', GOOD, 400, "header Content-Type"),
    "a long boundary": (TYPE + b"x" * 70, GOOD, 400, "header Content-Type"),
    "another boundary": (TYPE + b"d", GOOD, 400, "before the first part"),
    "an empty body": (TYPE, b"", 400, "before the first part: expected the closing boundary"),
    "no form": (TYPE, b'{"a": 1}', 400, "before the first part"),
    "something before": (TYPE, b"x" + GOOD, 400, "before the first part"),
    "cut in a header": (TYPE, GOOD[:20], 400, "part 1: expected the closing boundary"),
    "cut in a body": (TYPE, part(b"hi")[:-3], 400, "part 1: expected the closing boundary"),
    "no end": (TYPE, part(b"hi"), 400, "part 1: expected the closing boundary"),
    "cut in its end": (TYPE, part(b"hi") + b"--abc-", 400, "expected the closing boundary"),
    "no disposition": (TYPE, b"--abc\r\n\r\nhi\r\n" + END, 400, "part 1: expected Content-Disp"),
    "another disposition": (TYPE, part(b"", b"attachment; name=a") + END, 400, "got 'attachment"),
    "no name": (TYPE, part(b"", b"form-data") + END, 400, "with a name, got 'form-data'"),
    "an empty name": (TYPE, part(b"", b'form-data; name=""') + END, 400, "with a name"),
    "a name that is no text": (TYPE, part(b"", b'form-data; name="\xff"') + END, 400, "UTF-8"),
    "a field that is no text": (TYPE, part(b"a\xff") + END, 400, "('a'): expected text in UTF-8"),
    "the second one": (TYPE, part(b"") + part(b"", b"x") + END, 400, "part 2: expected"),
    "a space in a header": (TYPE, part(b"", more=b"a b: c\r\n") + END, 400, "part 1"),
    "many headers": (TYPE, part(b"", more=b"a: b\r\n" * 9) + END, 400, "part 1"),
    "a long header": (TYPE, part(b"", more=b"a: %b\r\n" % (b"b" * 5000)) + END, 400, "part 1"),
    "many parts": (TYPE, part(b"") * (MOST_PARTS + 1) + END, 413, f"at most {MOST_PARTS} parts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_form_is_told_with_its_place(name: str) -> None:
    """By the number of the part, which a client's programmer can count."""
    content_type, body, status, said = WRONG[name]
    with pytest.raises(ServingError) as raised:
        parse_form(content_type, body)

    assert (status, True) == (raised.value.status, said in str(raised.value)), raised.value
