"""A body that came as gzip, taken apart in pieces and within the limit of bodies.

A few bytes of gzip may stand for gigabytes. So no more than one piece is inflated before the limit
and the budget are looked at again, and the loop serves others between two pieces.
"""

import io
import zlib
from typing import Final

from batchedapi_serving.errors import MalformedError, TooLargeError

PIECE_BYTES: Final = 256 * 1024
"""Inflated at once, which takes about a millisecond."""
_FED_BYTES: Final = 64 * 1024
"""Given to zlib at once: what it does not take is copied every time."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""zlib's number for gzip's own head and checksum."""


class Inflater:
    """One body.

    Attributes:
        size: Bytes inflated so far, at most the limit.
    """

    def __init__(self, packed: bytes, most: int) -> None:
        """`most` bytes may come of `packed`."""
        self.size = 0
        self._rest = memoryview(packed)
        self._fed = b""
        self._most = most
        self._zlib = zlib.decompressobj(wbits=_GZIP)
        self._body = io.BytesIO()

    def step(self) -> bool:
        """Inflate one piece; whether the body is whole.

        Raises:
            MalformedError: this is no gzip, or not one whole member of it.
            TooLargeError: more than the limit comes of it.
        """
        if not self._fed:
            self._fed, self._rest = bytes(self._rest[:_FED_BYTES]), self._rest[_FED_BYTES:]
        # One byte above the limit tells that it is too much.
        room = min(PIECE_BYTES, self._most - self.size + 1)
        try:
            piece = self._zlib.decompress(self._fed, room)
        except zlib.error as error:
            raise MalformedError(
                f"body: expected gzip, as Content-Encoding says, got {error}"
            ) from error
        more_fed = bool(self._fed)
        self._fed = self._zlib.unconsumed_tail
        self.size += len(piece)
        if self.size > self._most:
            self.size = self._most
            raise TooLargeError(
                f"body: expected at most {self._most} bytes (overload.maxBodySize) once inflated,"
                " got more"
            )
        self._body.write(piece)
        if self._zlib.eof:
            if self._zlib.unused_data or self._rest:
                raise MalformedError("body: expected one member of gzip, got something after it")
            return True
        if not (piece or more_fed or self._rest):
            raise MalformedError("body: expected gzip, as Content-Encoding says, got a part of it")
        return False

    def body(self) -> bytes:
        """The whole body, once it is."""
        return self._body.getvalue()
