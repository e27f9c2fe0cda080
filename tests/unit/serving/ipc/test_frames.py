"""The wire between the dispatcher and a model process."""

import itertools
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving.ipc import (
    MAX_META_BYTES,
    MAX_PAYLOAD_BYTES,
    BrokenFrameError,
    Frame,
    FrameReader,
    encode_frame,
    read_frames,
)

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)
FRAMES = st.lists(
    st.builds(
        Frame,
        st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=3),
        st.binary(max_size=40),
    ),
    max_size=5,
)


@SETTINGS
@given(FRAMES, st.lists(st.integers(0, 400), max_size=20))
def test_frames_are_the_same_however_their_bytes_are_cut(
    frames: list[Frame], cuts: list[int]
) -> None:
    """A stream has no borders; a reader that needs whole frames works on a laptop only."""
    stream = b"".join(encode_frame(meta, [payload]) for meta, payload in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()

    read = [
        frame
        for start, stop in itertools.pairwise(edges)
        for frame in reader.feed(stream[start:stop])
    ]

    assert frames == read


def test_payload_buffers_are_sent_as_one() -> None:
    """A batch is the rows of many requests, one after the other."""
    reader = FrameReader()

    (frame,) = reader.feed(encode_frame({"rows": 3}, [b"a", b"", b"bc"]))

    assert Frame({"rows": 3}, b"abc") == frame


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IQ", MAX_META_BYTES + 1, 0),
        struct.pack("<IQ", 2, MAX_PAYLOAD_BYTES + 1),
        struct.pack("<IQ", 2, 0) + b"{]",
        struct.pack("<IQ", 2, 0) + b"[]",
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
    ids=["long meta", "long payload", "no JSON", "no object", "no frame at all"],
)
def test_what_is_no_frame_breaks_the_connection(data: bytes) -> None:
    """There is no way to find the next frame; and nothing may be allocated for its lengths."""
    with pytest.raises(BrokenFrameError):
        list(FrameReader().feed(data))


def test_frames_are_read_from_a_socket_until_it_closes() -> None:
    """The model process blocks there between batches; an end in the middle of a frame is an end."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(encode_frame({"rows": 1}, [b"x"]) + encode_frame({"rows": 2})[:-1])
        read = list(read_frames(ours))

    assert [Frame({"rows": 1}, b"x")] == read
