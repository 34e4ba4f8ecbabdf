"""The error of a grammar that can't be used. Any thread."""

from __future__ import annotations

from anllm.errors import InvalidRequestError

MAX_REASON_CHARS = 600
MAX_POINTER_CHARS = 300


class GrammarError(InvalidRequestError):
    """The schema, regex or grammar is wrong, unsupported or over a limit. The caller sets `param`.

    pointer: JSON pointer of the offending subschema ("" is the root); None where it is unknown or no schema.
    keyword: the keyword of that subschema, where one is to blame.
    """

    code = "invalid_grammar"

    def __init__(self, reason: str, *, pointer: str | None = None, keyword: str | None = None) -> None:
        """reason: what is wrong, without the place, which is put before it: as a fragment, so that the root is "#"."""
        reason = _cut(reason, MAX_REASON_CHARS)
        pointer = None if pointer is None else _cut(pointer, MAX_POINTER_CHARS)  # its keys are the client's
        if keyword is not None and keyword not in reason:
            reason = f"{keyword}: {reason}"
        super().__init__(f"Invalid grammar: {reason}" if pointer is None else f"Invalid schema at #{pointer}: {reason}")
        self.reason = reason
        self.pointer = pointer
        self.keyword = keyword


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
