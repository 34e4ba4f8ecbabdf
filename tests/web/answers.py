"""Answers with everything that markdown has, by words of the question."""

from __future__ import annotations

ANSWERS = {
    "merges overlapping intervals": """\
Sort by start, then extend the last interval as long as the next one touches it:

```python
def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    \"\"\"Merge overlapping intervals; touching ones count as overlapping.\"\"\"
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


assert merge([(8, 10), (1, 3), (2, 6)]) == [(1, 6), (8, 10)]
assert merge([]) == []
```

Sorting takes **O(n log n)**, the walk **O(n)**. `sorted` leaves the caller's list as it was.
""",
    "in a streaming setting": """\
Then you can't sort first. Keep the merged intervals in order and put each new one in its place:

| Structure | Insert | Memory |
| --- | ---: | --- |
| Sorted list with `bisect` | O(n) | one entry per merged interval |
| Balanced tree | O(log n) | the same, with pointers |

1. Find the first interval that ends at or after the new start.
2. Swallow every interval that begins at or before the new end.
3. Put the union in their place.

> For a few thousand intervals the sorted list wins: moving memory is cheap.
""",
    "everything": """\
# A heading

Some *emphasis*, **strength**, `code`, a [link](https://example.org/?a=1&b=2), ~~nothing~~ and a line<br>break.

- one
- two
  - three

1. first
2. second

> A quote.

| a | b |
| --- | ---: |
| x | 1 |

```js
const answer = "<b>42</b>";
```

With \\(a_1 * b_1 + a_2 * b_2\\) and $$\\sum_i x_i$$ as well.

![picture](https://example.org/pixel.png)

<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
[bad](javascript:window.hacked=3)
<div class="composer" style="position:fixed">raw</div>
""",
    "things to do": """\
- [x] boil water
- [ ] drink **tea**

<details><summary>How *long*?</summary>

Four minutes.

- or five

</details>

That is all.
""",
    "from right to left": """\
مرحبا بالعالم

- واحد

> اثنان

```python
print(1)
```
""",
}
