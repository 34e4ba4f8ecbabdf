"""A picture of a sweep: throughput and times against load. Needs matplotlib, which is an extra."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from anllm.bench.figures import Figures
from anllm.bench.load import Point
from anllm.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")
PANELS = (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "end to end"))


def check_chart(path: Path) -> None:
    """Raises ConfigError, before a long run, for what would go wrong after it."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"chart: {str(path)!r} must end with {', '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"chart: there is no folder for {str(path)!r}; make it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("chart: charts need matplotlib: pip install 'anllm[charts]', or pip install matplotlib.")


def draw(path: Path, title: str, points: Sequence[tuple[Point, Figures]]) -> None:
    """Four panels into `path`; the form is that of its suffix."""
    from matplotlib.figure import Figure

    has_rate = all(point.rate is not None for point, _ in points)
    x = [float(point.rate if has_rate and point.rate is not None else point.concurrency or 0) for point, _ in points]
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, 2).flat
    throughput = next(panels)
    throughput.plot(x, [figures.output_tokens_s for _, figures in points], "o-", label="output")
    throughput.plot(x, [figures.total_tokens_s for _, figures in points], "o--", label="prompt and output")
    throughput.set(title="throughput", ylabel="tokens/s")
    for axes, (name, label) in zip(panels, PANELS, strict=True):
        for percent, style in ((50.0, "o-"), (99.0, "o--")):
            spreads = [getattr(figures, name) for _, figures in points]
            values = [spread.percentiles[percent] if spread else float("nan") for spread in spreads]
            axes.plot(x, values, style, label=f"p{percent:g}")
        axes.set(title=label, ylabel="ms")
    for axes in figure.axes:
        axes.set(xlabel="requests/s" if has_rate else "streams", ylim=(0, None))
        if len(x) > 2 and not has_rate and min(x) > 0:
            axes.set_xscale("log", base=2)
            axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)
