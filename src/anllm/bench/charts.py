"""A picture of a sweep: throughput and times against load. Needs matplotlib, which is an extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anllm.bench.figures import Figures, Spread
from anllm.bench.load import Point
from anllm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

SUFFIXES = (".png", ".svg", ".pdf")
PANELS = (("ttft", "Time to first token"), ("itl", "Inter-token latency"), ("e2el", "End to end"))
FIRST, SECOND = "#4f46c8", "#d9730d"  # as in the browser
# Where a figure may stand at its point, the best first: the way there in points of type, and what of the text is there.
PLACES = (
    (0, -7, "center", "top"),
    (7, -4, "left", "top"),
    (-7, -4, "right", "top"),
    (0, 7, "center", "bottom"),
    (-7, 4, "right", "bottom"),
    (7, 4, "left", "bottom"),
    (9, 0, "left", "center"),
    (0, -14, "center", "top"),
    (0, 14, "center", "bottom"),
)
CLEAR = 2.5  # points of type that are kept free around a figure
STYLE: dict[Any, object] = {
    "figure.constrained_layout.h_pad": 0.14,
    "figure.constrained_layout.w_pad": 0.14,
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8b5ae",
    "axes.labelcolor": "#56544f",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ebe9e4",
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "xtick.color": "#56544f",
    "ytick.color": "#56544f",
    "legend.frameon": False,
    "legend.borderpad": 0.1,
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5,
    "legend.fontsize": 9.5,
}


def check_chart(path: Path) -> None:
    """Raises ConfigError, before a long run, for what would go wrong after it."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"chart: {str(path)!r} must end with {', '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"chart: there is no folder for {str(path)!r}; make it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"chart: charts need matplotlib: {sys.executable} -m pip install matplotlib")


def draw(path: Path, title: str, points: Sequence[tuple[Point, Figures]]) -> None:
    """Four panels into `path`; the form is that of its suffix."""
    import matplotlib
    from matplotlib.figure import Figure

    has_rate = all(point.rate is not None for point, _ in points)
    x = [float(point.rate if has_rate and point.rate is not None else point.concurrency or 0) for point, _ in points]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 7), dpi=150, layout="constrained")
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold")
        throughput, *times = figure.subplots(2, 2).flat
        output = [figures.output_tokens_s for _, figures in points]
        labels = [draw_panel(throughput, "Throughput in tokens/s", x, output, "output")]
        total = [figures.total_tokens_s for _, figures in points]
        throughput.plot(x, total, "o--", color=SECOND, label="with prompts")
        for axes, (name, label) in zip(times, PANELS, strict=True):
            spreads = [getattr(figures, name) for _, figures in points]
            median = [at_percentile(spread, 50.0) for spread in spreads]
            labels.append(draw_panel(axes, f"{label} in ms", x, median, "median"))
            far = [at_percentile(spread, 99.0) for spread in spreads]
            axes.plot(x, far, "o--", color=SECOND, label="p99")
        for axes in figure.axes:
            axes.set(xlabel="requests a second" if has_rate else "streams", ylim=(0, axes.get_ylim()[1] * 1.08))
            if len(x) > 2 and not has_rate and min(x) > 0:
                axes.set_xscale("log", base=2)
                axes.set_xticks(x, [f"{value:g}" for value in x])
                axes.minorticks_off()
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.grid(axis="x", visible=False)
            axes.margins(x=0.08)
            axes.legend(loc="lower right", bbox_to_anchor=(1.01, 0.985), ncols=2)  # beside the title
        figure.draw_without_rendering()  # from here on it is known where everything stands
        for axes, of_panel in zip(figure.axes, labels, strict=True):
            place(axes, of_panel)
        figure.savefig(path)


def at_percentile(spread: Spread | None, percent: float) -> float:
    return float("nan") if spread is None else spread.percentiles[percent]


def draw_panel(axes: Axes, title: str, x: Sequence[float], y: Sequence[float], label: str) -> list[Annotation]:
    """One line, and its figures, which have no place yet."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]
    axes.set_title(title)
    axes.plot(x, y, "o-", color=FIRST, label=label)
    return [
        axes.annotate(
            f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
            (at, value),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=9,
            color=FIRST,
            path_effects=halo,
            zorder=5,
        )
        for at, value in zip(x, y, strict=True)
        if value == value  # not a number where nothing was measured
    ]


def place(axes: Axes, labels: Sequence[Annotation]) -> None:
    """Puts each where it touches neither a line nor another one nor the frame; where that can't be, fewest of them."""
    lines = [line.get_transform().transform_path(line.get_path()).cleaned(remove_nans=True) for line in axes.lines]
    taken: list[Bbox] = []

    def box_at(label: Annotation, to: tuple[float, float, str, str]) -> Bbox:
        label.set(position=to[:2], ha=to[2], va=to[3])
        return label.get_window_extent()

    def touched(box: Bbox) -> int:
        room = box.padded(CLEAR * axes.figure.dpi / 72)
        is_on_axis = box.x0 < axes.bbox.x0 or box.y0 < axes.bbox.y0
        is_cut = box.x1 > axes.figure.bbox.x1 or box.y1 > axes.bbox.y1
        num_lines = sum(bool(line.intersects_bbox(room, filled=False)) for line in lines)
        return int(is_on_axis or is_cut) + num_lines + int(room.count_overlaps(taken))

    for label in labels:
        best = min(PLACES, key=lambda to: touched(box_at(label, to)))
        taken.append(box_at(label, best))
