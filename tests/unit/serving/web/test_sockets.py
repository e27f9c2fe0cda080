"""Bytes of answers that a client has not taken, on a real socket."""

import asyncio

from batchedapi_serving.web.sockets import unsent_bytes


async def test_what_a_client_does_not_read_is_counted_wherever_it_is() -> None:
    """In our buffer or the kernel's: 8 MB are more than the client's kernel takes unread."""
    size = 8 << 20
    counted: list[int] = []
    read, done, full = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        await asyncio.sleep(0.2)
        counted.append(unsent_bytes(writer.transport))
        full.set()
        await writer.drain()
        await read.wait()
        while unsent_bytes(writer.transport):  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(0.01)
        counted.append(unsent_bytes(writer.transport))
        done.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    await full.wait()
    await reader.readexactly(size)
    read.set()
    async with asyncio.timeout(60):
        await done.wait()
    writer.close()
    server.close()

    assert 0 < counted[0] <= size
    assert 0 == counted[1]
