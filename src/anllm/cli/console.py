"""What a person sees while things load: a progress bar on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from anllm.core.events import EngineInfo, LoadProgress


class BytesColumn(DownloadColumn):
    """Every stage that has a total counts bytes."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class PercentColumn(TextColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class SpeedColumn(TransferSpeedColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.total else Text()


class TerminalConsole:
    """Progress on stderr, the ready line on stdout. Calls may come from several threads, one at a time."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            PercentColumn("{task.percentage:>3.0f}%"),
            BytesColumn(),
            SpeedColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._label = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, label: str, total: int | None) -> None:
        self.done()
        self._label = label
        self._task = self._bar.add_task(label, total=total)
        if not self._console.is_terminal:
            print(f"{label} …", file=sys.stderr, flush=True)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, amount)

    def done(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task, self._label = None, ""

    def loading(self, progress: LoadProgress) -> None:
        if progress.stage != self._label:
            self.stage(progress.stage, progress.total or None)
        if self._task is not None:
            self._bar.update(self._task, completed=progress.done)

    def ready(self, address: str, model_id: str, info: EngineInfo) -> None:
        self.done()
        self._bar.stop()
        if sys.stdout.isatty():
            print_ready(address, model_id, info)
        else:
            print(ready_line(address, model_id, info), flush=True)


def print_ready(address: str, model_id: str, info: EngineInfo) -> None:
    """For somebody who looks: the same, with the addresses on lines of their own, where they can be clicked at."""
    console = Console(highlight=False, soft_wrap=True)
    shown = escape(address)  # [fe80::1] is no style
    console.print(f"\n[bold]Serving {escape(model_id)}[/bold]\n")
    console.print(f"  Chat in the browser  [bold cyan]{shown}/[/]")
    console.print(f"  OpenAI base URL      [bold cyan]{shown}/v1[/]\n")
    console.print(Padding(Text(" · ".join(facts(info))), (0, 2)), style="dim", soft_wrap=False)
    console.print("\n  Ctrl-C ends it.\n", style="dim")


def ready_line(address: str, model_id: str, info: EngineInfo) -> str:
    """Address, model, backend, BLAS, K/V budget, and where the chat is, in one line."""
    serving, chat = f"Serving {model_id} at {address}/v1", f"chat in the browser at {address}/"
    return " · ".join((serving, *facts(info), chat))


def facts(info: EngineInfo) -> list[str]:
    """How the model is served."""
    tokens = info.kv_budget_bytes // info.kv_bytes_per_token
    return [
        f"backend {info.backend}",
        *([f"BLAS {info.blas}"] if info.blas else []),
        f"weights {info.weights}",
        f"{info.execution} batching",
        f"context {info.max_model_len}",
        f"K/V budget {info.kv_budget_bytes / 1e9:.1f} GB ({tokens:,} tokens)",
    ]
