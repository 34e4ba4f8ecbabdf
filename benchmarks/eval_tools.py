"""How often tool calls are right: a sample of BFCL v4 on a running server, with and without the server's help.

    python benchmarks/eval_tools.py --url http://127.0.0.1:8000 --bfcl bfcl_eval-VERSION.whl --cases 10
    python benchmarks/eval_tools.py --serve FILE.gguf --bfcl bfcl_eval-VERSION.whl

Each case is asked three ways: `required` has tools and tool_choice "required"; `auto` has tools and tool_choice "auto";
`text` has neither: the same tools are described in the prompt, and the answer is read as JSON here. All are greedy.

Prints one JSON line a way, then a table. A call fits if its function is one of those given and its arguments are JSON
that the function's schema allows. A case is right if its calls are those that BFCL has for it (bfcl.py). A call that
max_tokens cut off in the middle is no call; such answers are counted by themselves. So are calls that the model wrote
as JSON where it has another form for them, which the server takes for content.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
from bfcl import CATEGORIES, Call, Case, described, load_cases, what_is_wrong
from environment import describe
from servers import anllm, started

WAYS = ("required", "auto", "text")
AS_TEXT = """You can call functions. Each line describes one, its parameters as a JSON schema:
{functions}
Answer with nothing but a JSON array of all calls that the request needs:
[{{"name": "name of the function", "arguments": {{"name of a parameter": "its value"}}}}]"""


@dataclass(frozen=True)
class Answer:
    """What came back for a case. is_cut: max_tokens ended it. in_content: calls that the server took for content.
    error: it was no answer at all."""

    case: Case
    calls: Sequence[Call] = ()
    is_cut: bool = False
    in_content: Sequence[Call] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    def misfits(self) -> list[str]:
        """What is wrong with the calls that don't fit."""
        found = [_misfit(self.case, call) for call in self.whole_calls()]
        return [reason for reason in found if reason is not None]

    def whole_calls(self) -> Sequence[Call]:
        has_part = self.is_cut and self.calls and self.calls[-1].arguments is None
        return self.calls[:-1] if has_part else self.calls

    def wrong(self) -> str | None:
        """Why this is not what BFCL expects; None if it is."""
        return self.error or what_is_wrong(self.case, self.calls)


def _misfit(case: Case, call: Call) -> str | None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools()}
    if call.arguments is None:
        return f"{call.name or 'the answer'}: no JSON"
    if call.name not in schemas:
        return f"{call.name}: no such function"
    errors = jsonschema_rs.validator_for(schemas[call.name]).iter_errors(call.arguments)
    return next((f"{call.name}: {error.message}" for error in errors), None)


def request(case: Case, way: str) -> dict[str, Any]:
    """The part of a request that differs from case to case."""
    if way != "text":
        return {"messages": case.messages, "tools": case.tools(), "tool_choice": way}
    functions = "\n".join(json.dumps(described(function)) for function in case.functions)
    return {"messages": [{"role": "system", "content": AS_TEXT.format(functions=functions)}, *case.messages]}


def calls_in_message(message: dict[str, Any]) -> list[Call]:
    """Those that the server read."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [Call(function["name"], _object(function["arguments"])) for function in functions]


def calls_in_text(text: str) -> list[Call]:
    """Those in the JSON that stands in `text`, one value after the other. What begins as JSON and is none, or is no
    call, is a call without name and arguments."""
    calls: list[Call] = []
    decoder = json.JSONDecoder()
    at = _json_begin(text, 0)
    while at is not None:
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return [*calls, Call("", None)]
        calls += map(_call_of, value if isinstance(value, list) else [value])
        at = _json_begin(text, end)
    return calls


def _json_begin(text: str, start: int) -> int | None:
    return min((at for sign in "[{" if (at := text.find(sign, start)) >= 0), default=None)


def _call_of(value: object) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", None)
    arguments = value.get("arguments")
    return Call(value["name"], arguments if isinstance(arguments, dict) else None)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


async def ask_all(url: str, common: dict[str, Any], cases: list[Case], way: str, streams: int) -> list[Answer]:
    """All cases, so many at once; the answers in their order."""
    free = asyncio.Semaphore(streams)

    async def ask(case: Case) -> Answer:
        async with free:
            return await _ask(client, url, common, case, way)

    async with httpx.AsyncClient(timeout=None) as client:
        return await asyncio.gather(*map(ask, cases))


async def _ask(client: httpx.AsyncClient, url: str, common: dict[str, Any], case: Case, way: str) -> Answer:
    try:
        response = await client.post(f"{url}/v1/chat/completions", json={**common, **request(case, way)})
    except httpx.HTTPError as error:
        return Answer(case, error=f"{type(error).__name__}: {error}")
    if response.status_code != 200:
        return Answer(case, error=f"{response.status_code} {response.text[:300]}")
    body = response.json()
    choice, usage = body["choices"][0], body["usage"]
    message = choice["message"]
    in_text = calls_in_text(message["content"] or "")
    calls, in_content = (in_text, []) if way == "text" else (calls_in_message(message), in_text)
    is_cut = choice["finish_reason"] == "length"
    return Answer(case, calls, is_cut, in_content, usage["prompt_tokens"], usage["completion_tokens"])


def figures(answers: list[Answer]) -> dict[str, Any]:
    """For JSON: counts, and what was wrong in which case."""
    by_category = {name: [answer for answer in answers if answer.case.category == name] for name in CATEGORIES}
    misfits = {answer.case.id: found for answer in answers if (found := answer.misfits())}
    num_calls = sum(len(answer.whole_calls()) for answer in answers)
    return {
        "cases": len(answers),
        "errors": sum(answer.error is not None for answer in answers),
        "with_calls": sum(bool(answer.whole_calls()) for answer in answers),
        "cut": [answer.case.id for answer in answers if answer.is_cut],
        "in_content": sum(_misfit(answer.case, call) is None for answer in answers for call in answer.in_content),
        "calls": num_calls,
        "fit": num_calls - sum(map(len, misfits.values())),
        "right": {name: sum(answer.wrong() is None for answer in group) for name, group in by_category.items()},
        "of": {name: len(group) for name, group in by_category.items()},
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "output_tokens": sum(answer.output_tokens for answer in answers),
        "misfits": misfits,
        "wrong": {answer.case.id: reason for answer in answers if (reason := answer.wrong())},
    }


def table(columns: dict[str, dict[str, Any]]) -> str:
    """Markdown: a column for each way."""
    rows = {
        "answers with a call": lambda way: f"{way['with_calls']} of {way['cases']}",
        "calls that fit their schema": lambda way: f"{way['fit']} of {way['calls']}",
        **{
            f"right: {name}": lambda way, name=name: f"{way['right'][name]} of {way['of'][name]}" for name in CATEGORIES
        },
        "calls written as content": lambda way: str(way["in_content"]),
        "cut by max_tokens": lambda way: str(len(way["cut"])),
        "tokens in, out": lambda way: f"{way['prompt_tokens']:,}, {way['output_tokens']:,}",
        "seconds": lambda way: f"{way['seconds']:.0f}",
    }
    lines = [["", *columns], ["---"] * (1 + len(columns))]
    lines += [[label, *map(text, columns.values())] for label, text in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@contextlib.contextmanager
def server(options: argparse.Namespace) -> Iterator[str]:
    """The address of the server to ask; one that is started here is ended again."""
    if options.serve is None:
        yield options.url
    else:
        with started(anllm(options.serve)) as running:
            yield running.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--serve", type=Path, help="model to start a server for, in place of --url")
    parser.add_argument("--model", help="its id (the first that the server has)")
    parser.add_argument("--bfcl", type=Path, required=True, help="wheel of bfcl-eval")
    parser.add_argument("--cases", type=int, default=10, help="of each category")
    parser.add_argument("--seed", type=int, default=0, help="that draws the cases")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--max-tokens", type=int, default=256)
    options = parser.parse_args()
    cases = load_cases(options.bfcl, options.cases, options.seed)
    about = {"bfcl": options.bfcl.name, "seed": options.seed, "streams": options.streams, **describe()}
    columns = {}
    with server(options) as url:
        model = options.model or httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        common = {"model": model, "temperature": 0, "max_tokens": options.max_tokens}
        for way in options.ways.split(","):
            begun = time.perf_counter()
            answers = asyncio.run(ask_all(url, common, cases, way, options.streams))
            columns[way] = {**figures(answers), "seconds": round(time.perf_counter() - begun, 1)}
            print(json.dumps({"way": way, "model": model, **columns[way], **about}), flush=True)
    print(table(columns))


if __name__ == "__main__":
    main()
