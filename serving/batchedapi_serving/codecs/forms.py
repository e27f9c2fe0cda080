"""multipart/form-data: the fields and files of one request, for methods that take a whole one.

The body is here and within `maxBodySize` already. It is read in the web process, so that a wrong
one never reaches the model, and once more in the model process, as JSON is.
"""

from collections.abc import Iterator
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from batchedapi_serving.codecs.charsets import charset_of, decoded
from batchedapi_serving.codecs.json_values import media_type
from batchedapi_serving.errors import MalformedError, TooLargeError, brief
from batchedapi_serving.predictor import Upload

FormValue = str | Upload | list[str | Upload]

FORM: Final = b"multipart/form-data"
MOST_PARTS: Final = 1000
MOST_HEADERS: Final = 8
"""Most in one part; browsers and curl send two."""
MOST_HEADER_BYTES: Final = 4096
_CHARSET: Final = "_charset_"
_LONGEST_BOUNDARY: Final = 70
"""Characters: RFC 2046, 5.1.1."""


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is taken apart here."""
    return media_type(content_type) == FORM


def parse_form(content_type: bytes, body: bytes) -> dict[str, FormValue]:
    """The parts by name: text of a field, an Upload of a file, a list where a name comes again.

    Raises:
        MalformedError: this is no form; says which part, what was expected and what came.
        TooLargeError: it has more than MOST_PARTS parts.
        UnsupportedTypeError: a text is in a charset that is not read here.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise MalformedError(
            "header Content-Type: expected multipart/form-data with a boundary of 1 to"
            f" {_LONGEST_BOUNDARY} characters, got {brief(content_type.decode('latin-1'))}; let the"
            " client's library write it"
        )
    reader = _Reader()
    parser = MultipartParser(
        boundary,
        reader.callbacks(),  # type: ignore[arg-type]  # some of them
        max_header_count=MOST_HEADERS,
        max_header_size=MOST_HEADER_BYTES,
    )
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise MalformedError(f"body: {reader.place}: {error}") from error
    if not reader.ended:
        raise MalformedError(
            f"body: {reader.place}: expected the closing boundary, got the end of the body"
        )
    form: dict[str, FormValue] = {}
    for name, value in reader.parts(charset_of(content_type)):
        before = form.get(name)
        if before is None:
            form[name] = value
        elif isinstance(before, list):
            before.append(value)
        else:
            form[name] = [before, value]
    return form


class _Reader:
    """Puts together the parts that the parser calls back with."""

    def __init__(self) -> None:
        self.ended = False
        self._headers: list[dict[bytes, bytes]] = []
        """One for each part, names in lower case."""
        self._bodies: list[bytearray] = []
        self._name = bytearray()
        self._value = bytearray()

    def callbacks(self) -> dict[str, object]:
        """By the parser's names."""
        return {
            "on_part_begin": self._begin,
            "on_part_data": lambda data, a, b: self._bodies[-1].extend(data[a:b]),
            "on_header_field": lambda data, a, b: self._name.extend(data[a:b]),
            "on_header_value": lambda data, a, b: self._value.extend(data[a:b]),
            "on_header_end": self._header,
            "on_end": self._end,
        }

    @property
    def place(self) -> str:
        """Where the parser is."""
        return f"part {len(self._headers)}" if self._headers else "before the first part"

    def parts(self, charset: str) -> Iterator[tuple[str, str | Upload]]:
        """Name and value of each; texts that declare no charset are in `charset`.

        Raises:
            MalformedError: a part is no field of a form, or no text in its charset.
            UnsupportedTypeError: its charset is not known here.
        """
        for number, (headers, body) in enumerate(
            zip(self._headers, self._bodies, strict=True), start=1
        ):
            kind, options = parse_options_header(headers.get(b"content-disposition", b""))
            name = options.get(b"name", b"")
            if kind != b"form-data" or not name:
                raise MalformedError(
                    f"body: part {number}: expected Content-Disposition: form-data with a name, got"
                    f" {brief(headers.get(b'content-disposition', b'').decode('latin-1'))}"
                )
            place = f"body: part {number}"
            key = decoded(bytes(name), charset, f"{place}: name")
            declared = headers.get(b"content-type", b"")
            if b"filename" not in options:
                text = decoded(
                    bytes(body), charset_of(declared, charset), f"{place} ({brief(key)})"
                )
                yield key, text
                if key == _CHARSET:  # of the parts behind it, as forms of HTML say it
                    charset = text.strip().lower()
                continue
            filename = decoded(options[b"filename"], charset, f"{place}: filename")
            yield key, Upload(filename, declared.decode("latin-1"), bytes(body))

    def _begin(self) -> None:
        if len(self._headers) == MOST_PARTS:
            raise TooLargeError(f"body: expected at most {MOST_PARTS} parts, got more")
        self._headers.append({})
        self._bodies.append(bytearray())

    def _header(self) -> None:
        self._headers[-1][bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end(self) -> None:
        self.ended = True
