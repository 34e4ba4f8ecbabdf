"""A model that calls functions, until it has an answer: `anllm serve MODEL`, with a model that is good at it.

python examples/tools_loop.py "Is it warmer in Oslo or in Rome?"
"""

import argparse
import json
from collections.abc import Callable

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

MAX_ROUNDS = 5
DEGREES = {"Oslo": 12, "Rome": 24}


def get_weather(city: str) -> str:
    return f"{DEGREES[city]} degrees" if city in DEGREES else f"There is no weather for {city}."


FUNCTIONS: dict[str, Callable[..., str]] = {"get_weather": get_weather}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "strict": True,  # arguments fit the schema, whatever the model
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def call(name: str, arguments: str) -> str:
    """What the function gives; mistakes are told to the model, which may do better then."""
    try:
        return FUNCTIONS[name](**json.loads(arguments))
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: {error!r}"


def main(question: str, base_url: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for _ in range(MAX_ROUNDS):
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=512
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            print(message.content)
            return
        messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type] # as it came
        for made in message.tool_calls:
            if made.type == "function":
                result = call(made.function.name, made.function.arguments)
                print(f"{made.function.name}({made.function.arguments}) -> {result}")
                messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    print(f"No answer after {MAX_ROUNDS} rounds of calls.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="Is it warmer in Oslo or in Rome?")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of the server, with /v1")
    given = parser.parse_args()
    main(given.question, given.url)
