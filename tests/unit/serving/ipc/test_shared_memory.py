"""Large payloads by shared memory: the same bytes, and no harm from the other side."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving.ipc import (
    LARGEST,
    THRESHOLD,
    BrokenFrameError,
    Frame,
    FrameReader,
    Meta,
    Region,
    SharedMemory,
)

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


@contextlib.contextmanager
def both_sides() -> Iterator[tuple[SharedMemory, SharedMemory]]:
    """A model process's memory and the dispatcher's, here in one process."""
    model = SharedMemory.create()
    dispatcher = SharedMemory.open(os.getpid(), model.hello())
    try:
        yield model, dispatcher
    finally:
        model.close()
        dispatcher.close()


def frame_of(data: bytes) -> Frame:
    """The one frame in `data`."""
    (frame,) = FrameReader().feed(data)
    return frame


def sent(sender: SharedMemory, receiver: SharedMemory, meta: Meta, payload: list[bytes]) -> bytes:
    """The payload that the other side takes out of the encoded frame."""
    return receiver.take(*frame_of(sender.encode(meta, payload)))


LENGTHS = st.lists(st.integers(0, 200_000), min_size=1, max_size=4)


@SETTINGS
@given(st.lists(LENGTHS, min_size=1, max_size=5))
def test_a_payload_is_the_same_whichever_way_it_goes(batches: list[list[int]]) -> None:
    """Lengths below and above the threshold, growing and shrinking, both ways in turn."""
    with both_sides() as (model, dispatcher):
        for number, lengths in enumerate(batches):
            buffers = [bytes([number, length % 251]) * (length // 2) for length in lengths]
            whole = b"".join(buffers)

            there = sent(dispatcher, model, {"rows": 1}, buffers)
            back = sent(model, dispatcher, {"kind": "tensors"}, buffers)

            assert (whole, whole) == (there, back)


def test_a_large_payload_is_not_in_the_frame() -> None:
    """The socket carries some dozen bytes and shared memory carries the tensor."""
    with both_sides() as (_, dispatcher):
        data = dispatcher.encode({"rows": 1}, [bytes(THRESHOLD)])

        assert ({"rows": 1, "shared": THRESHOLD}, b"") == frame_of(data)
        assert len(data) < 100


def test_a_small_payload_stays_in_the_frame() -> None:
    """Below the threshold the socket is as fast, and the frame needs no second look."""
    with both_sides() as (_, dispatcher):
        assert ({"rows": 1}, b"x" * 9) == frame_of(dispatcher.encode({"rows": 1}, [b"x" * 9]))


def test_the_next_batch_does_not_change_what_was_taken_before() -> None:
    """The region is written again while answers of the batch before are still being encoded."""
    with both_sides() as (model, dispatcher):
        first = sent(model, dispatcher, {}, [b"a" * THRESHOLD])
        sent(model, dispatcher, {}, [b"b" * THRESHOLD])

        assert b"a" * THRESHOLD == first


def test_without_memory_a_payload_goes_inline() -> None:
    """C24, S6: no memory to be had costs time, never a batch, and is never a SIGBUS."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with both_sides() as (model, dispatcher):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            data = dispatcher.encode({"rows": 1}, [b"y" * THRESHOLD])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

        assert ({"rows": 1}, b"y" * THRESHOLD) == frame_of(data)
        assert b"z" * THRESHOLD == sent(dispatcher, model, {}, [b"z" * THRESHOLD])


def test_more_than_a_region_may_hold_goes_inline() -> None:
    """A region never shrinks: one huge batch must not hold memory for ever."""
    region = Region.create()
    assert region is not None
    try:
        assert not region.write([], LARGEST + 1)
        assert 0 == os.fstat(region.descriptor).st_size
    finally:
        region.close()


@pytest.mark.parametrize(
    ("pid", "announced"),
    [
        (os.getpid(), []),
        (1 << 22, [3, 4]),
        (os.getpid(), [9999, 9998]),
        (os.getpid(), ["3", 4]),
        (os.getpid(), None),
    ],
    ids=["none", "no process", "no descriptor", "no number", "null"],
)
def test_a_hello_that_names_no_memory_means_inline(pid: int, announced: object) -> None:
    """Another PID namespace, a system without memfd: slower, and nothing else."""
    shared = SharedMemory.open(pid, announced)

    assert ({"rows": 1}, bytes(THRESHOLD)) == frame_of(
        shared.encode({"rows": 1}, [bytes(THRESHOLD)])
    )


def test_memory_that_could_shrink_is_not_opened(tmp_path: os.PathLike[str]) -> None:
    """Reading behind the end of a truncated file is SIGBUS: the web process would die of it."""
    unsealed = os.memfd_create("test", os.MFD_CLOEXEC)
    plain = os.open(os.path.join(tmp_path, "file"), os.O_RDWR | os.O_CREAT)  # noqa: PTH118 - a descriptor is wanted
    reading, writing = os.pipe()
    try:
        opened = [Region.open(os.getpid(), fd) for fd in (unsealed, plain, reading, writing)]
    finally:
        for fd in (unsealed, plain, reading, writing):
            os.close(fd)

    assert [None, None, None, None] == opened


def test_the_memory_cannot_be_made_smaller() -> None:
    """Not even by code that the user brought into the model process."""
    with both_sides() as (model, dispatcher):
        sent(model, dispatcher, {}, [bytes(THRESHOLD)])
        (_, descriptor) = model.hello()

        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)


@pytest.mark.parametrize("length", [1 << 30, -1, "9", None, 1.5])
def test_a_length_that_is_not_there_breaks_the_connection(length: object) -> None:
    """The dispatcher believes no number it is told; the lane is closed as for any broken frame."""
    with both_sides() as (model, dispatcher):
        sent(model, dispatcher, {}, [bytes(THRESHOLD)])

        with pytest.raises(BrokenFrameError):
            dispatcher.take({"kind": "tensors", "shared": length}, b"")


def test_the_other_side_may_die_while_its_memory_is_in_use() -> None:
    """S1: SIGKILL of the model process hurts neither what was read nor what is written here.

    And it leaves no file behind.
    """
    ours, theirs = socket.socketpair()
    code = """
        import os, socket, sys, time
        from batchedapi_serving.ipc import SharedMemory
        from batchedapi_serving.ipc import encode_frame
        connection, shared = socket.socket(fileno=int(sys.argv[1])), SharedMemory.create()
        connection.sendall(encode_frame({"memory": shared.hello()}))
        connection.recv(1)
        connection.sendall(shared.encode({"kind": "tensors"}, [b"q" * 300_000]))
        time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()  # noqa: PTH208, PTH112, S108 - where leftovers would be
    theirs.close()
    with ours:
        reader = FrameReader()
        (hello,) = reader.feed(ours.recv(4096))
        shared = SharedMemory.open(child.pid, hello.meta["memory"])
        ours.sendall(b"x")
        (frame,) = reader.feed(ours.recv(4096))
        view = shared.view(*frame)

        child.kill()
        child.wait()

        assert b"q" * 300_000 == bytes(view)
        assert {"rows": 1, "shared": 400_000} == frame_of(
            shared.encode({"rows": 1}, [bytes(400_000)])
        ).meta
        assert before == (set(os.listdir("/dev/shm")) if before else before)  # noqa: PTH208, S108 - see above
        del view
        shared.close()


def test_descriptors_are_given_back() -> None:
    """A process that is replaced 1,000 times must not use up the web process's descriptors."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count

    for _ in range(50):
        with both_sides() as (model, dispatcher):
            sent(model, dispatcher, {}, [bytes(THRESHOLD)])

    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
