"""Runs the points of a sweep one after the other: spreads each over processes, and gathers what they saw."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from anllm.bench.figures import Figures
from anllm.bench.load import Load, Point
from anllm.bench.prompts import Body, WordLength, dataset_requests, measure_words, random_requests
from anllm.bench.sender import Sent, Share, Tally, send_in_process
from anllm.client.address import Address
from anllm.client.plain import PlainClient
from anllm.errors import ConfigError, RemoteError
from anllm.limits import processors

STREAMS_OF_A_PROCESS = 128
WARM_UP_TOKENS = 8
START_S = 30.0

OnTally = Callable[[Tally], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """num_requests: of each point, None is what suits its concurrency. num_processes: None is found out."""

    num_requests: int | None = None
    num_warm_up: int | None = None
    num_processes: int | None = None
    timeout_s: float = 600.0

    def requests_of(self, point: Point) -> int:
        """Four for each stream, at least 16; with a rate, ten seconds' worth."""
        if self.num_requests is not None:
            return self.num_requests
        if point.rate is not None:
            return max(int(10 * point.rate), 16)
        assert point.concurrency is not None
        return max(4 * point.concurrency, 16)

    def warm_up_of(self, point: Point) -> int:
        """As many as will run at the same time, so that the server has seen a step of that height."""
        return self.num_warm_up if self.num_warm_up is not None else min(point.concurrency or 8, 256)

    def processes_of(self, point: Point) -> int:
        """One, and more for hundreds of streams where there are processors for them."""
        streams = point.concurrency or STREAMS_OF_A_PROCESS
        if self.num_processes is not None:
            return min(self.num_processes, streams)
        return max(1, min(processors() // 2, -(-streams // STREAMS_OF_A_PROCESS)))


class Bench:
    """Load on one server."""

    def __init__(self, address: Address, model: str | None, load: Load, settings: Settings) -> None:
        """model: its id, None takes the first that is served. Raises RemoteError if the server can't be used."""
        self.address = address
        self.load = load
        self.settings = settings
        client = PlainClient(address, settings.timeout_s)
        served = client.models()
        if model is None and not served:
            raise RemoteError(f"{address.url} serves no model.")
        self.model = model or served[0]
        self._words = WordLength(0, 1) if load.dataset else measure_words(client, load, self.model)

    def run(self, point: Point, seed: int, on_tally: OnTally, on_stage: Callable[[str], None]) -> Figures:
        """seed: of the point, so that no prompt comes twice. Raises RemoteError if nothing at all could be sent."""
        number = self.settings.warm_up_of(point)
        if number:
            on_stage("warming up")
            bodies = [{**body, "max_tokens": WARM_UP_TOKENS} for body in self._bodies(number, seed + 1_000_000)]
            warm = Point(number)
            self._send(warm, bodies, seed, lambda tally: None)
        on_stage("sending")
        sent = self._send(point, self._bodies(self.settings.requests_of(point), seed), seed, on_tally)
        figures = Figures.of(sent, self.load.goodput_ms)
        if not figures.num_done:
            raise RemoteError(
                f"All {figures.num_failed} requests of the point '{point.label}' failed: {figures.first_error}"
            )
        return figures

    def _bodies(self, number: int, seed: int) -> list[Body]:
        if self.load.dataset:
            return dataset_requests(self.load, self.model, number)
        return random_requests(self.load, self.model, number, self._words, seed)

    def _send(self, point: Point, bodies: Sequence[Body], seed: int, on_tally: OnTally) -> list[Sent]:
        number = min(self.settings.processes_of(point), len(bodies))
        encoded = [json.dumps(body).encode() for body in bodies]
        shares = [
            Share(
                address=self.address,
                path=self.load.endpoint.path,
                bodies=encoded[i::number],
                streams=_part(point.concurrency, i, number),
                rate=None if point.rate is None else point.rate / number,
                burstiness=point.burstiness,
                seed=seed * 1000 + i,
                timeout_s=self.settings.timeout_s,
            )
            for i in range(number)
        ]
        return send_all(shares, on_tally)


def _part(whole: int | None, i: int, number: int) -> int | None:
    return None if whole is None else whole // number + (i < whole % number)


def send_all(shares: Sequence[Share], on_tally: OnTally) -> list[Sent]:
    """Each share by a process of its own, all at the same time. Raises RemoteError if one of them dies."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    processes: list[BaseProcess] = []
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=send_in_process, args=(share, theirs), name="anllm-bench", daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:  # all of them are there before one begins
            if not pipe.poll(START_S):
                raise ConfigError(f"clients: a process did not start within {START_S:g} seconds; take fewer.")
            _receive(pipe)
        for pipe in pipes:
            pipe.send(None)
        return _gather(pipes, on_tally)
    finally:
        for started in processes:
            started.terminate()
        for started in processes:
            started.join()
        for pipe in pipes:
            pipe.close()


def _gather(pipes: Sequence[Pipe], on_tally: OnTally) -> list[Sent]:
    tallies = dict.fromkeys(range(len(pipes)), Tally())
    found: dict[int, Sent] = {}
    while len(found) < len(pipes):
        for ready in wait([pipe for i, pipe in enumerate(pipes) if i not in found]):
            assert isinstance(ready, Pipe)
            i = pipes.index(ready)
            message = _receive(ready)
            if isinstance(message, Sent):
                found[i] = message
            elif isinstance(message, Tally):
                tallies[i] = message
                on_tally(Tally(*(sum(getattr(tally, f.name) for tally in tallies.values()) for f in fields(Tally))))
    return [found[i] for i in range(len(pipes))]


def _receive(pipe: Pipe) -> object:
    try:
        return pipe.recv()
    except EOFError:
        raise RemoteError("A process of the client died; try again with fewer streams or other --clients.") from None


def report(bench: Bench, points: Sequence[tuple[Point, Figures]], version: str) -> dict[str, object]:
    """All of a run, for JSON."""
    load = bench.load
    return {
        "anllm": version,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "url": bench.address.url,
        "model": bench.model,
        "load": {f.name: getattr(load, f.name) for f in fields(load)},
        "points": [
            {
                "max_concurrency": point.concurrency,
                "request_rate": point.rate,
                "burstiness": point.burstiness,
                **figures.as_json(),
            }
            for point, figures in points
        ],
    }
