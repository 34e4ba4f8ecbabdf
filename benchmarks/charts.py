"""Charts from what the other benchmarks print. Needs matplotlib, which nothing else here does.

    python benchmarks/steps.py … | tee steps.jsonl; python benchmarks/compare.py … | tee compare.jsonl
    python benchmarks/charts.py --steps steps.jsonl --compare compare.jsonl --out docs/charts --name cpu

Writes NAME-steps.svg (step time against rows, one line for each context), NAME-vocab.svg (step time against the
vocabulary, one line for each number of rows, from --vocab: steps of models that differ in it) and NAME-compare.svg
(output tokens/s against streams, one line for each server; the mean of all runs).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "anllm", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3})
import matplotlib.pyplot as plt  # noqa: E402 - the backend comes first

Lines = dict[str, list[tuple[float, float]]]


def read(file: Path) -> list[dict[str, Any]]:
    """The JSON lines among whatever else was printed."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]


def draw(lines: Lines, x: str, y: str, target: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for label, points in lines.items():
        points.sort()
        axes.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=label)
    ticks = sorted({p[0] for points in lines.values() for p in points})
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def step_lines(rows: list[dict[str, Any]]) -> Lines:
    lines: Lines = defaultdict(list)
    for row in rows:
        if "rows" in row:
            label = f"{row['context']} tokens of context"
            lines[label].append((row["rows"], row["step_ms"]["p50"]))
    return lines


def vocab_lines(rows: list[dict[str, Any]]) -> Lines:
    lines: Lines = defaultdict(list)
    for row in rows:
        drawn = "greedy" if row["temperature"] == 0 else "drawn"
        lines[f"{row['rows']} rows, {drawn}"].append((row["vocab"] / 1000, row["step_ms"]["p50"]))
    return lines


def compare_lines(rows: list[dict[str, Any]]) -> Lines:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if "server" in row:
            found[row["server"], row["streams"]].append(row["output_tok_s"])
    lines: Lines = defaultdict(list)
    for (server, streams), rates in found.items():
        lines[server].append((streams, sum(rates) / len(rates)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/charts"))
    parser.add_argument("--name", required=True)
    options = parser.parse_args()
    if options.steps:
        draw(step_lines(read(options.steps)), "rows", "ms a step", options.out / f"{options.name}-steps.svg")
    if options.vocab:
        target = options.out / f"{options.name}-vocab.svg"
        draw(vocab_lines(read(options.vocab)), "thousand tokens in the vocabulary", "ms a step", target)
    if options.compare:
        target = options.out / f"{options.name}-compare.svg"
        draw(compare_lines(read(options.compare)), "streams", "output tokens/s", target)


if __name__ == "__main__":
    main()
