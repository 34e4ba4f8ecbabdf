"""One page of a list, as OpenAI's pagers ask for it: limit, order and after."""

from __future__ import annotations

from collections.abc import Mapping

from anllm.server.responses.store import Item
from anllm.server.validation import invalid

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100


def page_of(items: list[Item], query: Mapping[str, str]) -> dict[str, object]:
    """items: the oldest first, each with an id; the newest comes first unless `order` is "asc". Raises
    InvalidRequestError."""
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be 'asc' or 'desc'", given=order)
    limit = _limit(query.get("limit", str(_DEFAULT_LIMIT)))
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((index for index, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise invalid("after", "must be the id of an item of this response", given=after)
        ordered = ordered[place + 1 :]
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "has_more": len(ordered) > limit,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MAX_LIMIT):
        raise invalid("limit", f"must be an integer from 1 to {_MAX_LIMIT}", given=text)
    return int(text)
