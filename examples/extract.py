"""Facts out of text, as JSON that fits a schema, however small the model: `anllm serve`."""

import argparse
import json
import sys

from openai import OpenAI

TEXT = "Ann Berg, 31, of Oslo bought two tickets to Rome on 3 May 2026 for 240 euros."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Rome", "Paris"]},
        "date": {"type": "string", "format": "date"},
        "price": {"type": "number", "minimum": 0, "maximum": 100000},
    },
    "required": ["name", "age", "city", "date", "price"],
    "additionalProperties": False,
}


def main(text: str, base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": f"{text}\n\nWho bought what, when and where? Answer in JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "sale", "schema": SCHEMA, "strict": True}},
        temperature=0,
        max_tokens=256,
    )
    choice = answer.choices[0]
    if choice.finish_reason != "stop":  # only what ended by itself is whole
        sys.exit(f"The answer is cut: {choice.finish_reason}")
    print(json.dumps(json.loads(choice.message.content or ""), indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default=TEXT)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of the server, with /v1")
    given = parser.parse_args()
    main(given.text, given.url)
