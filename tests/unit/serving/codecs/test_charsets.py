"""Text is read in the charset that was declared, or refused; never a character for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core.batching import Receipts
from batchedapi_serving import Response
from batchedapi_serving.codecs import RequestHead, Wire
from batchedapi_serving.codecs.charsets import charset_of, decoded
from batchedapi_serving.codecs.forms import parse_form
from batchedapi_serving.codecs.item_codec import CallCodec
from batchedapi_serving.errors import ClientError, MalformedError, UnsupportedTypeError
from batchedapi_serving.model.marshalling import arguments_of, call_item
from batchedapi_serving.predictor import MethodSpec, Tensor, Upload
from protocols import IRIS, ITEMS, PAIRS, codec_of, single

SPEC = MethodSpec("predict", batched=False)
CALL = CallCodec(SPEC, "api", Receipts.OFF)
ARGUMENTS = arguments_of(SPEC)


def given_to_method(content_type: bytes, body: bytes, query: bytes = b"") -> tuple[object, object]:
    """Payload and query, across both processes."""
    decoded = CALL.decode(Wire.PLAIN, RequestHead(content_type, query, ()), body)
    payload, parameters, _ = ARGUMENTS({}, b"".join(decoded.payload[0]))
    return payload, parameters


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"text/plain", "utf-8"),
        (b"text/plain; charset=UTF-8", "utf-8"),
        (b"text/plain;charset=utf8", "utf-8"),
        (b'text/plain; format=flowed; CharSet="ISO-8859-1"', "iso-8859-1"),
        (b"text/plain; charset = latin-1 ; x=y", "latin-1"),
        (b"text/plain; charset=", ""),
        (b"text/plain; xcharset=latin-1", "utf-8"),
    ],
)
def test_what_is_declared_is_found(content_type: bytes, expected: str) -> None:
    """The charset may be in upper or lower case, quoted or not."""
    assert expected == charset_of(content_type)


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("utf-8", "Jörg 😀"), ("utf-16", "Jörg 😀"), ("utf-16le", "Jörg"), ("utf-32", "Jörg"),
        ("us-ascii", "Joerg"), ("latin-1", "Jörg"), ("iso-8859-15", "5 €"), ("cp1250", "ž"),
        ("windows-1252", "“5 €”"), ("koi8-r", "Привет"), ("gb18030", "汉"), ("big5", "中文"),
        ("shift_jis", "日本"), ("euc-kr", "한"),
    ],
)  # fmt: skip
def test_a_text_is_read_as_it_was_written(charset: str, text: str) -> None:
    """A text wrongly read as UTF-8 would be another text, answered with 200."""
    payload, _ = given_to_method(f"text/plain; charset={charset}".encode(), text.encode(charset))

    assert text == payload


@pytest.mark.parametrize(
    "charset",
    [b"", b"klingon", b"utf-7", b"punycode", b"idna", b"unicode_escape", b"rot13", b"zlib",
     b"undefined", b"mbcs", b"base64", b"iso-8859-99", b"utf-8-sig", b"\xff", b"..", b"x" * 5000],
)  # fmt: skip
def test_a_charset_that_is_not_read_here_is_named(charset: bytes) -> None:
    """Codecs that are no charsets, or take the square of a text's length, are not for clients."""
    with pytest.raises(UnsupportedTypeError, match="expected a charset such as utf-8") as caught:
        given_to_method(b"text/plain; charset=" + charset, b"text")

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"text/plain", b"J\xf6rg"),
        (b"text/csv; charset=utf-8", b"\xed\xa0\x80"),
        (b"text/plain; charset=utf-16", b"a"),
        (b"text/plain; charset=us-ascii", "\u00f6".encode()),
        (b"text/plain; charset=utf-16le", b"\x00\xd8a\x00"),
    ],
)
def test_bytes_that_are_no_such_text_are_refused(content_type: bytes, body: bytes) -> None:
    """Replaced characters would be another text, answered with 200."""
    with pytest.raises(MalformedError, match=r"body: expected text in .*, got byte 0x"):
        given_to_method(content_type, body)


@pytest.mark.parametrize("charset", ["utf-16", "latin-1", "us-ascii", "klingon", ""])
@pytest.mark.parametrize("wire", [Wire.PLAIN, Wire.V1, Wire.V2])
def test_json_is_utf_8_in_every_protocol(charset: str, wire: Wire) -> None:
    """RFC 8259; the answer names what was declared."""
    head = RequestHead(f"application/json; charset={charset}".encode(), b"", ())
    wide = single(Tensor("FP32", ["n"]))

    for codec in (CALL, *map(codec_of, (ITEMS, IRIS, PAIRS, wide))):
        with pytest.raises(UnsupportedTypeError, match=f"JSON in utf-8, got charset '{charset}'"):
            codec.decode(wire, head, b"[1]")


def field(name: bytes, value: bytes, charset: bytes = b"") -> bytes:
    """One text of a form."""
    declared = b"Content-Type: text/plain; charset=%b\r\n" % charset if charset else b""
    head = b'Content-Disposition: form-data; name="%b"\r\n%b' % (name, declared)
    return b"--abc\r\n%b\r\n%b\r\n" % (head, value)


def test_each_part_of_a_form_has_its_charset() -> None:
    """Its own, or what `_charset_` says of those behind it, or the form's, or UTF-8."""
    body = (
        field(b"a", "ö".encode())
        + field(b"b", b"\xf6", b"iso-8859-1")
        + field(b"_charset_", b"windows-1252")
        + field(b"\xf6", b"\x80")
        + b'--abc\r\nContent-Disposition: form-data; name="f"; filename="\x80.txt"\r\n\r\n\xff\r\n'
        + b"--abc--\r\n"
    )

    assert {
        "a": "ö", "b": "ö", "_charset_": "windows-1252", "ö": "€", "f": Upload("€.txt", "", b"\xff")
    } == parse_form(b"multipart/form-data; boundary=abc", body)  # fmt: skip
    latin = field(b"a", b"\xf6") + b"--abc--\r\n"
    assert {"a": "ö"} == parse_form(b"multipart/form-data; boundary=abc; charset=latin-1", latin)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (field(b"a", b"x", b"klingon"), 415),
        (field(b"_charset_", b"punycode") + field(b"a", b"x"), 415),
        (field(b"a", b"\xf6"), 400),
        (field(b"_charset_", b"us-ascii") + field(b"a", b"\xf6"), 400),
        (b'--abc\r\nContent-Disposition: form-data; name="f"; filename="\xf6"\r\n\r\n\r\n', 400),
    ],
)
def test_a_part_in_no_charset_is_refused(body: bytes, status: int) -> None:
    """With the number of the part."""
    with pytest.raises(ClientError, match=r"body: part [12]") as caught:
        given_to_method(b"multipart/form-data; boundary=abc", body + b"--abc--\r\n")

    assert status == caught.value.status


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"q=J%C3%B6rg&p=a+b", {"q": "Jörg", "p": "a b"}),
        ("q=Jörg".encode(), {"q": "Jörg"}),
        (b"q=%25&empty=", {"q": "%", "empty": ""}),
        (b"q=%zz", {"q": "%zz"}),
    ],
)
def test_a_query_is_utf_8(query: bytes, expected: object) -> None:
    """Escaped or not."""
    assert expected == given_to_method(b"", b"1", query)[1]


@pytest.mark.parametrize("query", [b"q=J%F6rg", b"q=J\xf6rg", b"q=%C3&p=%B6", b"q=%C3\xb6"])
def test_a_query_in_another_charset_is_refused(query: bytes) -> None:
    """Nothing declares one."""
    with pytest.raises(MalformedError, match="query: expected text in UTF-8"):
        given_to_method(b"", b"1", query)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_passes_as_it_is(text: str) -> None:
    """Byte order marks and NUL too."""
    assert text == decoded(text.encode(), "utf-8", "body")


def test_a_response_says_the_charset_that_it_is_in() -> None:
    """Text and JSON are sent in UTF-8; bytes are what the predictor says that they are."""
    headers = {"content-type": "text/plain; charset=latin-1"}

    assert [500, 500, 200, 200] == [
        call_item(Response(content, headers=said)).status
        for content, said in [
            ("ö", headers),
            ({"a": "ö"}, headers),
            (b"\xf6", headers),
            ("ö", {"content-type": "text/html; charset=utf-8"}),
        ]
    ]
