from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from anllm.errors import DownloadError, ModelError
from anllm.store.hub import fetch_from_hub
from anllm.store.resolve import fetch, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


class Hub(ThreadingHTTPServer):
    """As much of the hub's HTTP interface as one model needs. files: of NAME. status: 200, or an error with a code."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.status, self.error_code = 200, ""
        self.requests: list[str] = []
        self.downloaded: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        files = self.server.files
        if self.server.status != 200:
            self._answer(b"{}", self.server.status, {"X-Error-Code": self.server.error_code})
        elif path.startswith(f"/{NAME}/resolve/"):
            name = path.rpartition("/")[2]
            if self.command == "GET":
                self.server.downloaded.append(name)
            self._answer(files[name], 200, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        elif "/tree/" in path:
            tree = [{"type": "file", "path": n, "size": len(d), "oid": n} for n, d in files.items()]
            self._answer(json.dumps(tree).encode(), 200, {})
        else:
            siblings = [{"rfilename": n, "size": len(d), "blobId": n} for n, d in files.items()]
            self._answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode(), 200, {})

    def _answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch, tmp_path, make_folder) -> Iterator[Hub]:
    """A hub with the whole model org/tiny, and an empty cache."""
    with Hub() as server:
        server.files = {path.name: path.read_bytes() for path in make_folder().iterdir()}
        server.files["README.md"] = b"read me"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_model_is_downloaded_with_progress_and_without_what_is_not_needed(hub, progress, tmp_path, capfd):
    folder = fetch(parse_source(NAME), progress, root=tmp_path / "cache")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    size = sum(len(data) for name, data in hub.files.items() if name != "README.md")
    assert progress.stages == [["Downloading org/tiny", size, size]]
    assert progress.is_done
    assert capfd.readouterr() == ("", "")


def test_a_cached_model_needs_no_request(hub, progress):
    folder = fetch_from_hub(NAME, progress)
    hub.requests.clear()
    assert fetch_from_hub(NAME, progress) == folder
    assert hub.requests == []


def test_what_is_missing_in_the_cache_is_downloaded_again(hub, progress):
    folder = fetch_from_hub(NAME, progress)
    hub.downloaded.clear()
    weights = folder / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    assert fetch_from_hub(NAME, progress) == folder
    assert hub.downloaded == ["model.safetensors"]


def test_a_repository_without_safetensors_is_no_model(hub, progress):
    del hub.files["model.safetensors"]
    with pytest.raises(ModelError, match=r"has no model\*\.safetensors"):
        fetch_from_hub(NAME, progress)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "The hub has no model org/tiny, or it is private: check the name, or set HF_TOKEN"),
        (403, "GatedRepo", "Model org/tiny is gated: accept its terms"),
        (400, "", "The hub refused model org/tiny with HTTP status 400"),
    ],
)
def test_a_refusal_of_the_hub_is_one_sentence_with_the_next_step(hub, progress, status, code, words):
    hub.status, hub.error_code = status, code
    with pytest.raises(DownloadError, match=words) as caught:
        fetch_from_hub(NAME, progress)
    assert "\n" not in caught.value.message


def test_offline_mode_is_honoured(hub, progress, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="not in the cache and HF_HUB_OFFLINE is set"):
        fetch_from_hub(NAME, progress)
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached_is_told_as_such(hub, progress, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="not in the cache and the hub can't be reached"):
        fetch_from_hub(NAME, progress)


def test_a_name_that_no_repository_can_have_is_refused(hub, progress):
    with pytest.raises(DownloadError, match="can't be the name of a model"):
        fetch_from_hub("org/a..b", progress)


def test_nothing_is_written_outside_the_hubs_cache(hub, progress, tmp_path):
    fetch(parse_source(NAME), progress, root=Path(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
