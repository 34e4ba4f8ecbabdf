"""A server as one is opened to others: keys, HTTPS, an address that others can reach."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest

from e2e.reference import model_folder
from e2e.servers import START_S, RunningServer, run_command

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(300)]

FILE_KEY, OTHER_KEY = "sk-in-the-file-0123456789", "sk-in-the-variable-0123456789"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    key.chmod(0o600)
    return certificate, key


def test_keys_and_https_from_start_to_end(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(f"ann {FILE_KEY}\n")
    keys.chmod(0o600)
    flags = ["--host", "0.0.0.0", "--api-key-file", str(keys), "--ssl-certfile", str(certificate)]
    server = RunningServer(
        tmp_path,
        str(model_folder()),
        *flags,
        "--ssl-keyfile",
        str(key),
        "--served-model-name",
        "m",
        ANLLM_API_KEY=OTHER_KEY,
    )
    url = server.url.replace("http://", "https://")
    trusting = ssl.create_default_context(cafile=str(certificate))
    with server, httpx.Client(base_url=url, verify=trusting, timeout=60) as http:
        wait_until_ready(server, http)
        assert "at https://0.0.0.0:" in server.stdout
        assert "listens on" not in server.log, "nothing is left to warn of"
        assert http.get("/v1/models").status_code == 401
        for secret in (FILE_KEY, OTHER_KEY):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=secret, http_client=http, max_retries=0)
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True
            )
            assert list(stream)[-1].choices[0].finish_reason
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            openai.OpenAI(base_url=f"{url}/v1", api_key="sk-no", http_client=http, max_retries=0).models.list()
        check_children(server.process.pid)
        assert server.status("/health") == 0, "HTTP is not spoken"
    assert "client=ann" in server.log and "client=key-" in server.log
    assert FILE_KEY not in server.log and OTHER_KEY not in server.log


def wait_until_ready(server: RunningServer, http: httpx.Client) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert server.process.poll() is None and time.monotonic() < deadline, server.log
        time.sleep(0.05)


def check_children(pid: int) -> None:
    """No process that the server has started knows a key."""
    if not Path("/proc/self/environ").exists():  # elsewhere, others' environments can't be read
        return
    parents = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdecimal()}
    children = [path for path in parents.values() if parent_of(path) == pid]
    assert len(children) >= 2, "the engine, and the process of the template"
    for child in children:
        seen = (child / "environ").read_bytes() + (child / "cmdline").read_bytes()
        assert FILE_KEY.encode() not in seen and OTHER_KEY.encode() not in seen


def parent_of(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_what_is_wrong_with_files_stops_the_start_before_the_model_is_loaded(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for flags in (["--api-key-file", missing], ["--ssl-certfile", missing]):
        done = run_command("serve", str(model_folder()), "--port", "0", *flags)
        assert done.returncode == 1 and done.stdout == ""
        assert f"{missing} can't be read: {os.strerror(2)}" in done.stderr and "Loading" not in done.stderr


def test_an_open_address_is_warned_of_once(tmp_path: Path) -> None:
    with RunningServer(tmp_path, str(model_folder()), "--host", "0.0.0.0") as server:
        server.wait_for(200)
    assert server.log.count("The server listens on 0.0.0.0") == 1
