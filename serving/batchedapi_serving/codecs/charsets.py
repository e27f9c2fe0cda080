"""Text in the charset that its content type declares: read as that, or refused; UTF-8 if none is.

The names are a list of ours: Python's own table has codecs that take the square of a text's length,
and keeps each name that it was ever asked for.
"""

import re
from typing import Final

from batchedapi_serving.errors import MalformedError, UnsupportedTypeError, brief

UTF_8: Final = "utf-8"
_DECLARED: Final = re.compile(rb';\s*charset\s*=\s*"?([^\s;"]*)', re.IGNORECASE)
_KNOWN: Final = re.compile(
    r"utf-8|us-ascii|ascii|iso-8859-\d\d?|latin-?1|(windows-|cp)125\d|utf-(16|32)([bl]e)?"
    r"|koi8-[ru]|gbk|gb2312|gb18030|big5|shift_jis|euc-(jp|kr)"
)


def charset_of(content_type: bytes, default: str = UTF_8) -> str:
    """The charset that a content type declares, in lower case."""
    declared = _DECLARED.search(content_type)
    if declared is None:
        return default
    name = declared[1].decode("latin-1").lower()
    return UTF_8 if name == "utf8" else name


def decoded(data: bytes, charset: str, place: str) -> str:
    """The text that bytes are.

    Raises:
        UnsupportedTypeError: the charset is none of those that are read here.
        MalformedError: the bytes are no text in it.
    """
    if not _KNOWN.fullmatch(charset):
        raise _unknown(charset, place)
    try:
        return data.decode(charset)
    except LookupError as error:
        raise _unknown(charset, place) from error
    except UnicodeDecodeError as error:
        raise MalformedError(
            f"{place}: expected text in {charset.upper()}, got byte {data[error.start]:#04x} at"
            f" {error.start}; declare its charset, or send it as bytes"
        ) from error


def _unknown(charset: str, place: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{place}: expected a charset such as utf-8 or iso-8859-1, got {brief(charset, 40)}"
    )
