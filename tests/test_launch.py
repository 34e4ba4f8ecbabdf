"""launch: the listening socket, and what is warned of before anything is loaded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from anllm.config import Config, SecurityConfig, ServerConfig
from anllm.errors import ConfigError
from anllm.launch import bind, warn_of_exposure


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


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])  # kept for examples, never a machine's own
def test_an_address_that_is_none_of_this_machines_is_told_with_a_way_out(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Can't listen on {host} port 0: .*\. Give an address of this machine"):
        bind(ServerConfig(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_an_address_of_this_machine_alone_is_no_exposure(host: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_exposure(Config(server=ServerConfig(host=host)))
    assert caplog.text == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "llm.example.com"])
def test_an_open_address_without_keys_and_tls_is_one_warning(host: str, caplog: pytest.LogCaptureFixture) -> None:
    def warnings(**security: object) -> list[str]:
        caplog.clear()
        config = Config(server=ServerConfig(host=host), security=SecurityConfig(**security))  # type: ignore[arg-type]
        warn_of_exposure(config)
        return [record.getMessage() for record in caplog.records]

    (both,) = warnings()
    assert host in both and "--api-key-file" in both and "--ssl-certfile" in both
    (no_tls,) = warnings(api_keys=("k" * 20,))
    assert "--api-key-file" not in no_tls and "--ssl-certfile" in no_tls
    (no_keys,) = warnings(ssl_certfile="c.pem")
    assert "--api-key-file" in no_keys and "--ssl-certfile" not in no_keys
    assert warnings(api_keys=("k" * 20,), ssl_certfile="c.pem") == []


def test_origins_of_everybody_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_exposure(Config(security=SecurityConfig(allowed_origins=("*",))))
    assert "Every web page" in caplog.text
