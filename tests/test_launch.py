"""launch.bind: the listening socket."""

from __future__ import annotations

import asyncio
import socket

from anllm.config import ServerConfig
from anllm.launch import bind


def test_connections_send_at_once_on_asyncios_own_loop() -> None:
    """uvloop sees to that by itself. Without it, the second of two small writes waited 40 ms for the reader's answer to
    the first one."""

    async def sends_at_once() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
            writer.close()

        with bind(ServerConfig(port=0)) as listener:
            async with await asyncio.start_server(on_connection, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                try:
                    return await found
                finally:
                    writer.close()
                    await writer.wait_closed()

    assert asyncio.run(sends_at_once())
