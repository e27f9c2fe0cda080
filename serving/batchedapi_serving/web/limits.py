"""What one connection may send, and how slowly."""

from typing import Final, NamedTuple

from batchedapi_core import contract


class Limits(NamedTuple):
    """Of every connection; sizes in bytes, times in seconds."""

    body: int
    headers: int = contract.MAX_HEADER_BYTES
    header_arrival: float = contract.HEADER_ARRIVAL_SECONDS
    """From the first byte of a request, or the start of the connection, to its headers' end."""
    body_arrival: float = contract.BODY_ARRIVAL_SECONDS
    """From the end of the headers to the last byte of the body."""
    idle: float = 75.0
    """A kept-alive connection without a request is closed after this."""


SWEEP_SECONDS: Final = 1.0
"""How often connections are looked over; a limit in time is met this late at most."""
EXPIRY_GRACE: Final = 5.0
"""How long a connection that was refused may take to read its answer."""
ACTIVE: Final = 1.0
"""A client that was answered less than this ago is likely to ask again soon."""
LAST_CALL: Final = 0.5
"""How long a stopping server waits for the next request of a connection that is new or active."""
