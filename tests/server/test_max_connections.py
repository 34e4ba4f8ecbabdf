"""Connections above the limit: sent away with an answer, but for supervisors."""

import httpx

from anllm.config import SchedulerConfig, ServerConfig
from fake_server import RealServer, make_runner
from serving import PATIENCE_S, Gate

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_connection_too_many_is_503_and_supervisors_are_answered() -> None:
    gate, config = Gate(), ServerConfig(max_connections=2, drain_timeout_s=0.1)
    with RealServer(make_runner(before_run=gate), gate, SchedulerConfig(), config).running() as server:
        held = [server.connect() for _ in range(2)]
        for connection in held:  # so that the server knows of it
            connection.sendall(HEALTH)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            refused = http.get("/v1/models")
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "service_unavailable"
            assert "2 connections" in refused.json()["error"]["message"]
            assert refused.headers["x-request-id"] and refused.headers["connection"] == "close"
            assert http.get("/health").status_code == 200
            for connection in held:
                connection.close()
            server.until(lambda: http.get("/v1/models").status_code == 200)
