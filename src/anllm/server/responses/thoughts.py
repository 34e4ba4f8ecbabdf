"""What the model thought, in a form that clients keep without looking at it, and give back."""

from __future__ import annotations

import base64
import binascii

_OWN_MARK = b"anllm:"  # what our own begins with; nobody else's can be read


def encrypted(thought: str) -> str:
    """For `encrypted_content`. Not secret: the text is the client's own."""
    return base64.b64encode(_OWN_MARK + thought.encode()).decode()


def decrypted(text: str) -> str:
    """What encrypted() made it of; "" where somebody else did."""
    try:
        raw = base64.b64decode(text, validate=True)
        return raw.removeprefix(_OWN_MARK).decode() if raw.startswith(_OWN_MARK) else ""
    except (binascii.Error, ValueError):
        return ""
