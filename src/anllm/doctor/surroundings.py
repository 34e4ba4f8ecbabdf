"""Disk, ports, limits, network, and the environment's variables."""

from __future__ import annotations

import difflib
import os
import resource
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from anllm.client.address import Address
from anllm.client.plain import PlainClient
from anllm.config import ServerConfig
from anllm.doctor.check import Check, ok, problem, warning
from anllm.errors import RemoteError
from anllm.store.cache import cache_folder

FEW_BYTES = 5_000_000_000
FEW_FILES = 4096  # a connection takes one
CONNECT_S = 3.0
ANSWER_S = 3.0
NETWORK_VARIABLES = (
    *("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "PIP_INDEX_URL"),
)


def check_surroundings(environment: Mapping[str, str], known_variables: Collection[str]) -> Iterator[Check]:
    """known_variables: those that anllm's flags have."""
    from huggingface_hub import constants

    config = ServerConfig()
    port = environment.get("ANLLM_SERVE_PORT", "")
    yield check_port(config.host, int(port) if port.isdigit() else config.port)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_disk("cache folder", cache_folder(None), "XDG_CACHE_HOME", holds_programs=True)
    yield check_disk("hub's cache", Path(constants.HF_HUB_CACHE), "HF_HOME")
    yield check_network(constants.ENDPOINT, constants.HF_HUB_OFFLINE, environment)
    yield check_variables(environment, known_variables)


def check_port(host: str, port: int) -> Check:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            if is_anllm(host, port):
                return ok(f"port {port}", f"an anllm runs there: http://{host}:{port}/")
            return warning(
                f"port {port}",
                f"can't be had ({error.strerror}): another server may run there",
                f"anllm serve --port {port + 1 if port < 65535 else 8001}, or end what listens: lsof -i :{port}",
            )
    return ok(f"port {port}", "free")


def is_anllm(host: str, port: int) -> bool:
    """Whether a server of ours answers there."""
    try:
        answer = PlainClient(Address(is_tls=False, host=host, port=port, prefix=""), ANSWER_S).get("/")
    except RemoteError:
        return False
    return answer.get("name") == "anllm"


def check_open_files(limit: int) -> Check:
    if limit != resource.RLIM_INFINITY and limit < FEW_FILES:
        return warning("open files", f"at most {limit}: so many connections at once", f"ulimit -n {FEW_FILES}")
    return ok("open files", f"at most {limit}" if limit != resource.RLIM_INFINITY else "no limit")


def check_disk(name: str, folder: Path, variable: str, *, holds_programs: bool = False) -> Check:
    """Whether the folder can be written to, whether what is compiled into it can be loaded, and what room there is."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        return problem(
            name, f"{folder} can't be written to", f"chown it to yourself, or set {variable} to another folder"
        )
    if holds_programs and sys.platform == "linux" and os.statvfs(place).f_flag & os.ST_NOEXEC:
        return warning(
            name,
            f"{folder} is mounted noexec: what is compiled there can't be loaded, and a CPU takes ten times as long",
            f"mount it without noexec (systemd: ExecPaths=), or set {variable} to another folder",
        )
    free = shutil.disk_usage(place).free
    found = f"{folder}, {free / 1e9:.0f} GB free"
    if free < FEW_BYTES:
        return warning(name, found, f"make room ('anllm list' and 'anllm rm'), or set {variable} to another folder")
    return ok(name, found)


def check_network(endpoint: str, is_offline: bool, environment: Mapping[str, str]) -> Check:
    """Whether new models can be fetched. Keys and passwords are not shown."""
    settings = [f"{n}={_without_password(environment[n])}" for n in NETWORK_VARIABLES if environment.get(n)]
    settings += ["HF_TOKEN is set"] if environment.get("HF_TOKEN") else []
    shown = "".join(f"; {setting}" for setting in settings)
    if is_offline:
        return ok("network", f"HF_HUB_OFFLINE is set: models come from the caches alone{shown}")
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if any(environment.get(name) or environment.get(name.lower()) for name in ("HTTPS_PROXY", "ALL_PROXY")):
        return ok("network", f"through a proxy{shown}")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return warning(
            "network",
            f"{host} can't be reached ({error.strerror or error}){shown}",
            "check the network, set HTTPS_PROXY, or serve what 'anllm list' has; HF_HUB_OFFLINE=1 stops trying",
        )
    return ok("network", f"{host} can be reached{shown}")


def _without_password(text: str) -> str:
    parts = urlsplit(text)
    return text if parts.password is None else text.replace(f":{parts.password}@", ":***@")


def check_variables(environment: Mapping[str, str], known: Collection[str]) -> Check:
    """ANLLM_ variables: those that are set, and those that nothing reads."""
    names = sorted(name for name in environment if name.startswith("ANLLM_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"perhaps {near[0]}" if near else "docs/config.md lists them"
        return warning("variables", f"{', '.join(unknown)}: nothing reads that", f"correct the name: {hint}")
    return ok("variables", ", ".join(names) or "no ANLLM_ variables are set")
