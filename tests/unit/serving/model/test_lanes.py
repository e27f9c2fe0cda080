"""Threads of sync methods, as the main thread and an event loop share them during the start."""

import asyncio
import threading

from batchedapi_serving.model.worker import ChannelLoop, LaneThreads


def test_what_an_event_loop_wants_runs_in_the_thread_that_waits_for_it() -> None:
    """The one lane is the main thread, where the predictor was made and batches will run."""
    lanes, channel = LaneThreads(1), ChannelLoop()

    async def asks() -> list[int]:
        given_up = asyncio.ensure_future(lanes.want(threading.get_ident))
        await asyncio.sleep(0)
        given_up.cancel()
        return [await lanes.want(threading.get_ident) for _ in range(2)]

    threading.Thread(target=channel.loop.run_forever, daemon=True).start()
    try:
        found = lanes.wait(channel.call(asks()))
    finally:
        channel.loop.call_soon_threadsafe(channel.loop.stop)

    here = threading.get_ident()
    assert ([here, here], here) == (found, lanes.call(threading.get_ident))


def test_several_lanes_are_threads_of_their_own_and_stay_the_same() -> None:
    """So that what a thread has after its warm-up, it has for its batches."""
    lanes, seen = LaneThreads(3), list[int]()

    def note() -> int:
        seen.append(threading.get_ident())
        return len(seen)

    assert (1, 4) == (lanes.each(note), lanes.each(note))
    assert seen[:3] == seen[3:]
    assert 3 == len({*seen} - {threading.get_ident()})
