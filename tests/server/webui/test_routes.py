"""The page and its files: who gets what, with which headers."""

import gzip
import re

import pytest

from anllm.server.webui.bundle import web_files
from server_harness import Server, assert_error

pytestmark = pytest.mark.anyio
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize("accept", ["*/*", "application/json", "", "text/html;q=0, */*", "text/htmlx"])
async def test_programs_get_json(server: Server, accept: str) -> None:
    response = await server.http.get("/", headers={"accept": accept})
    assert response.json()["models"] == "/v1/models"
    assert "accept" in response.headers["vary"]


async def test_browsers_get_the_page_which_is_looked_at_anew_each_time(server: Server) -> None:
    response = await server.http.get("/", headers=BROWSER)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["vary"] == "accept, accept-encoding"
    assert response.text.startswith("<!doctype html>")
    again = await server.http.get("/", headers={**BROWSER, "if-none-match": response.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert again.headers["content-security-policy"] == response.headers["content-security-policy"]


async def test_the_policy_lets_in_the_pages_own_files_only(server: Server) -> None:
    headers = (await server.http.get("/", headers=BROWSER)).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "font-src", "connect-src"):
        assert policy[kind] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_the_page_names_files_that_are_there_and_kept_for_good(server: Server) -> None:
    page = (await server.http.get("/", headers=BROWSER)).text
    assert "<style" not in page and not re.search(r"<script(?![^>]* src=)", page)
    names = re.findall(r'(?:src|href)="\./([^"]+)"', page)
    assert {name.rpartition(".")[2] for name in names} == {"js", "css", "svg"}
    for name in names:
        response = await server.http.get(f"/{name}")
        assert response.status_code == 200, name
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_every_file_comes_as_it_is_packed_or_not(server: Server) -> None:
    for name, file in web_files().items():
        path, headers = ("/", BROWSER) if name == "index.html" else (f"/{name}", {})
        plain = await server.http.get(path, headers={**headers, "accept-encoding": "identity"})
        assert plain.content == file.content
        assert "content-encoding" not in plain.headers
        packed = await server.http.get(path, headers={**headers, "accept-encoding": "gzip, br"})
        assert packed.content == file.content  # httpx has unpacked it
        assert ("content-encoding" in packed.headers) is (file.compressed is not None)
        if file.compressed is not None:
            assert gzip.decompress(file.compressed) == file.content
        assert (await server.http.head(path, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/assets/nothing.js", "/assets/..%2Findex.html", "/assets/%2e%2e/bundle.py", "/assets/", "/assets", "/build.json"],
)
async def test_nothing_else_is_there(server: Server, path: str) -> None:
    assert_error(await server.http.get(f"http://localhost:8000{path}"), 404, None, "unknown_url")


async def test_licences(server: Server) -> None:
    response = await server.http.get("/assets/licences.txt")
    assert response.headers["cache-control"] == "no-cache"
    for name in ("preact", "marked", "dompurify", "highlight.js", "@fontsource-variable/inter"):
        assert f"\n{name} " in response.text


async def test_it_is_small() -> None:
    sent = sum(len(file.compressed or file.content) for file in web_files().values())
    assert sent < 300_000
