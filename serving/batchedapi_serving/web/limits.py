"""What one connection may send, and how slowly it may send and read."""

import math
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
    patience: float = 10.0
    """After this a body that is on its way, or an answer that is, must move at `least_rate`."""
    least_rate: int = 1024
    """Bytes a second, slower than any modem: who is slower holds a connection on purpose."""
    idle: float = math.inf
    """A kept-alive connection without a request is closed after this; so long that what stands in
    front closes first, as whoever closes does not send into a closed connection."""
    age: float = math.inf
    """A connection that is this old, give or take AGE_JITTER of it, is closed with an answer."""


AGE_JITTER: Final = 0.1
"""As gRPC does it: connections that were made together do not all leave together."""
SWEEP_SECONDS: Final = 1.0
"""How often connections are looked over; a limit in time is met this late at most."""
EXPIRY_GRACE: Final = 5.0
"""How long a connection that was refused may take to read its answer."""
ACTIVE: Final = 1.0
"""A client that was answered less than this ago is likely to ask again soon."""
LAST_CALL: Final = 1.0
"""How long a stopping server waits for the next request of a connection that is new or active."""
