"""The picture of a sweep, looked at where matplotlib puts things."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from anllm.bench.figures import Figures, Spread
from anllm.bench.load import Point

pytest.importorskip("matplotlib", reason="the extra 'charts' is not installed")

SWEEPS = {
    # streams, output tokens/s, tokens/s with prompts, median and p99 of times
    "close": [(1, 75, 230, 40, 55), (8, 1189, 1228, 60, 66), (32, 1372, 1415, 95, 104)],
    "steep": [(1, 9.4, 12, 12, 13), (2, 310, 330, 14, 700), (4, 2900, 3100, 800, 820), (8, 3000, 9000, 900, 4000)],
    "flat": [(n, 400, 440, 100, 104) for n in (1, 2, 4, 8, 16, 32)],
    "falling": [(1, 1000, 1100, 900, 2000), (4, 700, 1090, 300, 310), (16, 100, 1080, 12, 900)],
    "wide": [(1, 8, 51, 1557, 1963), (4, 9.3, 59, 5188, 7915), (16, 9.7, 61, 19136, 33608)],
    "alone": [(8, 120, 240, 33, 66)],
    "unmeasured": [(1, 20, 40, None, None), (8, 100, 220, 30, 61)],
}


def spread(middle: float | None, far: float | None) -> Spread | None:
    return None if middle is None or far is None else Spread(middle, {50.0: middle, 90.0: far, 95.0: far, 99.0: far})


def figures(output: float, total: float, middle: float | None, far: float | None) -> Figures:
    times = spread(middle, far)
    num_tokens, num_prompt_tokens = round(10 * output), round(10 * (total - output))
    return Figures(8, 0, "", 10.0, num_prompt_tokens, num_tokens, times, times, times, times, None, 1, 0.1, 0.1)


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=SWEEPS)
def test_no_figure_stands_on_a_line_or_on_another(
    sweep: list[tuple[int, float, float, float, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from anllm.bench.charts import draw

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (drawn.append(self), save(self, *args, **kw))[1])
    draw(tmp_path / "chart.png", "a sweep", [(Point(streams), figures(*rest)) for streams, *rest in sweep])
    (figure,) = drawn
    for axes in figure.axes:
        boxes = {text.get_text() + f" at {text.xy[0]:g}": text.get_window_extent() for text in axes.texts}
        legend = axes.get_legend()
        assert legend is not None
        assert not legend.get_window_extent().overlaps(axes._left_title.get_window_extent()), "title and legend"
        lines = [line.get_transform().transform_path(line.get_path()).cleaned(remove_nans=True) for line in axes.lines]
        for name, box in boxes.items():
            where = f"{name} in {axes.get_title(loc='left')!r}"
            assert not any(line.intersects_bbox(box, filled=False) for line in lines), f"{where} stands on a line"
            assert not box.overlaps(legend.get_window_extent()), f"{where} stands on the legend"
            assert axes.bbox.x0 <= box.x0 and axes.bbox.y0 <= box.y0, f"{where} stands on an axis"
            assert box.x1 <= figure.bbox.x1 and box.y1 <= axes.bbox.y1, f"{where} is cut"
        for (first, one), (second, other) in combinations(boxes.items(), 2):
            assert not one.overlaps(other), f"{first} and {second} in {axes.get_title(loc='left')!r}"
