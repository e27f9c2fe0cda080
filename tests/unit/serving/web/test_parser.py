"""The parser alone; what it makes of bytes is tested through connections."""

import gc

from batchedapi_serving.web.parser import KnownHeads, RequestParser
from connections import LIMITS

REQUEST = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n1"


def test_a_closed_parser_leaves_nothing_to_the_collector() -> None:
    """It comes rarely here: what thousands of closed connections leave would look like a leak."""
    gc.collect()
    gc.disable()
    try:
        parser = RequestParser(LIMITS, KnownHeads({b"/predict": None}))
        requests = len(parser.feed(REQUEST)) + len(parser.feed(REQUEST))
        parser.close()
        del parser
        left = gc.collect()
    finally:
        gc.enable()

    assert (2, 0) == (requests, left)


def test_a_refusal_keeps_nothing_of_what_was_read() -> None:
    """Its traceback would, until the collector comes, which is seldom."""
    parser = RequestParser(LIMITS)
    parser.feed(b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 999999999\r\n\r\n" + bytes(1000))

    assert parser.error is not None
    assert parser.error.__traceback__ is None
