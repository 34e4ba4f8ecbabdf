"""`anllm bench`: load on a server, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import anllm
from anllm.cli.model_names import servable_models
from anllm.cli.remote import api_key_option, target, url_option

if TYPE_CHECKING:
    from rich.progress import Progress

    from anllm.bench.figures import Figures, Spread
    from anllm.bench.load import Load, Point
    from anllm.bench.run import Bench


class NumberList(click.ParamType):  # type: ignore[type-arg] # not generic in older versions
    """Numbers with commas between them."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            return [float(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of numbers; give one such as 1,8,32", param, ctx)


@click.command(context_settings={"show_default": True})
@click.argument("model", required=False, shell_complete=servable_models)
@url_option
@api_key_option
@click.option("--model-id", help="Id of the model in requests.  [default: the first one that is served]")
@click.option(
    "--concurrency", type=NumberList(), help="Requests at the same time; several with commas.  [default: 1,8,32]"
)
@click.option("--rate", type=NumberList(), help="Requests a second, at random moments; several with commas.")
@click.option("--burstiness", default=1.0, help="Of --rate: 1 is a Poisson process, less is burstier.")
@click.option("--requests", type=click.IntRange(1), help="Requests of each point.  [default: 4 a stream, 16 at least]")
@click.option("--prompt-tokens", default=128, help="Tokens of each prompt.")
@click.option("--output-tokens", default=128, help="Tokens of each answer.")
@click.option("--range-ratio", default=0.0, help="Lengths are spread evenly by so much to both sides.")
@click.option("--prefix-tokens", default=0, help="Of the prompt tokens, those that all requests share.")
@click.option("--dataset", help="Prompts from a .jsonl, .json (ShareGPT too) or .txt file, in place of random words.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", help="What to ask.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Answers have exactly --output-tokens.")
@click.option("--temperature", default=0.0, help="Of each request.")
@click.option("--extra-body", help="JSON object with further fields of each request.")
@click.option("--goodput", multiple=True, help="Count requests that keep a limit in ms, such as ttft:500; repeatable.")
@click.option("--warmup", type=click.IntRange(0), help="Requests before each point.  [default: its concurrency]")
@click.option("--clients", type=click.IntRange(1), help="Processes that send.  [default: 1 for 128 streams]")
@click.option("--timeout", default=600.0, help="Seconds that a request may take.")
@click.option("--seed", default=0, help="Of the prompts.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file; - is stdout."
)
@click.option("--chart", type=click.Path(path_type=Path), help="Draw a .png or .svg file; needs the extra 'charts'.")
def bench(model: str | None, url: str | None, api_key: str | None, **options: Any) -> None:
    """Measure a server with OpenAI's API under load: ours or another one, at --url, or started for MODEL.

    Each number of --concurrency or --rate is a point, and a row of the table. The figures are those of `vllm bench
    serve`: TTFT, TPOT, ITL and end-to-end times, and throughput by the server's own count of tokens.
    """
    from anllm.bench.run import Bench, Settings

    load, points = load_of(options), points_of(options)
    settings = Settings(options["requests"], options["warmup"], options["clients"], options["timeout"])
    check_files(load, options["json_file"], options["chart"])
    with target(model, url, api_key) as address:
        run = Bench(address, options["model_id"], load, settings)
        results: list[tuple[Point, Figures]] = []
        try:
            for number, point in enumerate(points):
                with drawn(point, settings.requests_of(point)) as seen:
                    results.append((point, run.run(point, load.seed + number, seen.tally, seen.stage)))
        finally:  # what was measured before an error or Ctrl-C is not lost
            if results:
                show(run, results, options["json_file"], options["chart"])


def check_files(load: Load, json_file: Path | None, chart: Path | None) -> None:
    """Raises ConfigError, before a long run, for what would go wrong in it or after it."""
    from anllm.bench.charts import check_chart
    from anllm.bench.prompts import read_dataset
    from anllm.errors import ConfigError

    if load.dataset is not None:
        read_dataset(Path(load.dataset))
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"json: there is no folder for {str(json_file)!r}; make it first.")
    if chart is not None:
        check_chart(chart)


def show(run: Bench, results: list[tuple[Point, Figures]], json_file: Path | None, chart: Path | None) -> None:
    from anllm.bench.charts import draw
    from anllm.bench.run import report

    is_json_on_stdout = str(json_file) == "-"
    print_results(run, results, to_stderr=is_json_on_stdout)
    if json_file is not None:
        text = json.dumps(report(run, results, anllm.__version__), indent=2)
        if is_json_on_stdout:
            click.echo(text)
        else:
            json_file.write_text(text + "\n", encoding="utf-8")
            click.echo(f"\nAll figures: {json_file}", err=True)
    if chart is not None:
        draw(chart, f"{run.model} · {run.load.label}", results)
        click.echo(f"Chart: {chart}", err=True)


def load_of(options: dict[str, Any]) -> Load:
    """Raises ConfigError."""
    from anllm.bench.load import Endpoint, Load
    from anllm.errors import ConfigError

    try:
        extra = json.loads(options["extra_body"] or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigError(f"extra_body must be a JSON object, got {options['extra_body']!r}.")
    limits: dict[str, float] = {}
    for text in " ".join(options["goodput"]).split():
        name, _, number = text.partition(":")
        try:
            limits[name] = float(number)
        except ValueError:
            raise ConfigError(f"goodput: {text!r} is none; give a name and milliseconds, such as ttft:500.") from None
    same = (
        "prompt_tokens",
        "output_tokens",
        "range_ratio",
        "prefix_tokens",
        "dataset",
        "ignore_eos",
        "temperature",
        "seed",
    )
    return Load(
        endpoint=Endpoint(options["endpoint"]),
        extra=extra,
        goodput_ms=limits,
        **{name: options[name] for name in same},
    )


def points_of(options: dict[str, Any]) -> list[Point]:
    """Raises ConfigError."""
    from anllm.bench.load import Point
    from anllm.errors import ConfigError

    streams = [int(number) for number in options["concurrency"] or ()]
    if options["rate"] is None:
        return [Point(number) for number in streams or (1, 8, 32)]
    if len(streams) > 1:
        raise ConfigError("concurrency: with a rate there is one limit of it at most; give one number, or no rate.")
    limit = streams[0] if streams else None
    return [Point(limit, rate, options["burstiness"]) for rate in options["rate"]]


class Drawn:
    """What is seen of a point under way."""

    def __init__(self, progress: Progress, point: Point, num_requests: int) -> None:
        self._progress = progress
        self._task = progress.add_task(point.label, total=num_requests, running=0, pieces="", stage="")
        self._last = (0.0, 0)

    def stage(self, name: str) -> None:
        self._progress.update(self._task, stage=name)

    def tally(self, tally: Any) -> None:
        elapsed = self._progress.tasks[0].elapsed or 0.0
        before, pieces = self._last
        rate = (tally.num_pieces - pieces) / max(elapsed - before, 1e-3)
        self._last = (elapsed, tally.num_pieces)
        failed = f", {tally.num_failed} failed" if tally.num_failed else ""
        self._progress.update(
            self._task, completed=tally.num_done, stage=f"{tally.num_running} running{failed}, {rate:,.0f} tokens/s"
        )


@contextmanager
def drawn(point: Point, num_requests: int) -> Iterator[Drawn]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(
        *columns,
        TextColumn("{task.fields[stage]}"),
        console=console,
        transient=True,
        refresh_per_second=4,
        disable=not console.is_terminal,
    )
    with progress:
        yield Drawn(progress, point, num_requests)


COLUMNS = ("load", "done", "req/s", "output tok/s", "total tok/s", "TTFT", "TPOT", "ITL", "E2EL")
WIDE = 110  # columns of a terminal that hold the table with a row for each point


def print_results(run: Bench, results: list[tuple[Point, Figures]], *, to_stderr: bool) -> None:
    """The table, and what has to be said about it."""
    from anllm.cli.tables import console_for, print_table

    click.echo(f"{run.model} at {run.address.url}. Times in ms: median / p99.\n", err=to_stderr)
    has_goodput = bool(run.load.goodput_ms)
    columns = (*COLUMNS, "goodput/s") if has_goodput else COLUMNS
    rows = [row(point, figures) for point, figures in results]
    if console_for(to_stderr=to_stderr).width >= WIDE:
        print_table(columns, rows, right=columns[1:], to_stderr=to_stderr)
    else:
        head, *rest = zip(columns, *rows, strict=True)
        print_table(head, rest, right=head[1:], to_stderr=to_stderr)
    for point, figures in results:
        if figures.num_failed:
            click.echo(f"{point.label}: {figures.num_failed} failed, the first: {figures.first_error}", err=True)
        if figures.warning:
            click.echo(f"Warning: {point.label}: {figures.warning}.", err=True)


def row(point: Point, figures: Figures) -> tuple[str, ...]:
    failed = f" ({figures.num_failed} failed)" if figures.num_failed else ""
    goodput = () if figures.goodput is None else (f"{figures.goodput:.2f}",)
    times = (figures.ttft, figures.tpot, figures.itl, figures.e2el)
    return (
        point.label,
        f"{figures.num_done}{failed}",
        f"{figures.requests_s:.2f}",
        f"{figures.output_tokens_s:,.1f}",
        f"{figures.total_tokens_s:,.1f}",
        *(middle_and_far(spread) for spread in times),
        *goodput,
    )


def middle_and_far(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    middle, far = spread.percentiles[50.0], spread.percentiles[99.0]
    digits = 0 if far >= 1000 else 1
    return f"{middle:,.{digits}f} / {far:,.{digits}f}"
