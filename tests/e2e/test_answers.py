"""The default model over HTTP, through the official client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from anllm.text.interface import Tokenizer
from e2e.conftest import MODEL
from e2e.reference import NUM_TOKENS, Answer
from e2e.servers import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(400)]

PARIS = [{"role": "user", "content": "What is the capital of France?"}]
POEM = [{"role": "user", "content": "Write a poem about the sea."}]


def ask(client: openai.OpenAI, messages: Any = PARIS, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=messages, **{"max_tokens": 24, **options})


def text_of(client: openai.OpenAI, messages: Any = PARIS, **options: Any) -> str:
    text: str = ask(client, messages, **options).choices[0].message.content
    return text


def greedy(client: openai.OpenAI, answer: Answer) -> tuple[str, int, str]:
    """Text, number of tokens, finish reason of the answer to a reference's prompt."""
    if answer.messages is not None:
        chat = ask(client, answer.messages, temperature=0, max_tokens=NUM_TOKENS)
        return chat.choices[0].message.content, chat.usage.completion_tokens, chat.choices[0].finish_reason
    made = client.completions.create(model=MODEL, prompt=answer.text, temperature=0, max_tokens=NUM_TOKENS)
    return made.choices[0].text, made.usage.completion_tokens, made.choices[0].finish_reason


def check(answer: Answer, found: tuple[str, int, str], tokenizer: Tokenizer) -> int:
    """Returns 1 if the answer is another one for a near tie."""
    text, num_tokens, reason = found
    differs = answer.check_text(text, tokenizer)
    if not differs:
        assert num_tokens == len(answer.tokens)
        assert reason == ("stop" if answer.tokens[-1] in tokenizer.eos_token_ids else "length")
    return differs


def test_greedy_answers_alone_are_mlx_lms_own(
    client: openai.OpenAI, reference: tuple[Answer, ...], tokenizer: Tokenizer
) -> None:
    excused = sum(check(answer, greedy(client, answer), tokenizer) for answer in reference)
    print(f"{excused} of {len(reference)} answers differ after a near tie")  # noqa: T201 - shown with -rP
    assert excused <= 2


def test_greedy_answers_eight_at_once_are_mlx_lms_own(
    client: openai.OpenAI, reference: tuple[Answer, ...], tokenizer: Tokenizer
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda answer: greedy(client, answer), reference))
    excused = sum(check(answer, one, tokenizer) for answer, one in zip(reference, found, strict=True))
    print(f"{excused} of {len(reference)} answers differ after a near tie")  # noqa: T201 - shown with -rP
    assert excused <= 2


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    assert "Paris" in text_of(client, temperature=0)


@pytest.mark.parametrize("max_tokens", [5, 24])
def test_B_2_streamed_and_whole_answers_are_the_same(client: openai.OpenAI, max_tokens: int) -> None:
    """Cut by the limit, and ended by the model."""
    whole = ask(client, temperature=0, max_tokens=max_tokens)
    chunks = list(
        ask(client, temperature=0, max_tokens=max_tokens, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason] == ["length" if max_tokens == 5 else "stop"]
    assert chunks[-1].usage == whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_B_2_streamed_and_whole_completions_are_the_same(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": ["The sky is", "Water"], "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**options)
    texts = ["", ""]
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("is_stream", [False, True])
def test_C089_C_1_stop_strings_may_lie_across_tokens(
    client: openai.OpenAI, reference: tuple[Answer, ...], tokenizer: Tokenizer, is_stream: bool
) -> None:
    """From the middle of one token to the middle of the next one but one."""
    answer = reference[7]
    whole = tokenizer.decode(answer.tokens)
    pieces = [tokenizer.decode([token]) for token in answer.tokens]
    first = next(i for i in range(3, len(pieces)) if all(len(piece) > 2 for piece in pieces[i : i + 3]))
    stop = pieces[first][-1] + pieces[first + 1] + pieces[first + 2][:2]
    made = ask(client, answer.messages, temperature=0, max_tokens=NUM_TOKENS, stop=[stop, "never"], stream=is_stream)
    if is_stream:
        choices = [chunk.choices[0] for chunk in made if chunk.choices]
        text, reason = "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason
    else:
        text, reason = made.choices[0].message.content, made.choices[0].finish_reason
    assert text == whole[: whole.index(stop)]
    assert reason == "stop"


def test_several_answers_to_one_prompt(client: openai.OpenAI) -> None:
    two = ask(client, POEM, n=2, seed=3, temperature=1.2, max_tokens=12)
    assert [choice.index for choice in two.choices] == [0, 1]
    first, second = (choice.message.content for choice in two.choices)
    assert first != second
    assert first == text_of(client, POEM, seed=3, temperature=1.2, max_tokens=12)
    same = ask(client, n=2, temperature=0, max_tokens=8)
    assert same.choices[0].message.content == same.choices[1].message.content


def test_C086_D_5_a_seed_repeats_an_answer_whatever_else_runs(client: openai.OpenAI) -> None:
    options = {"temperature": 1.0, "max_tokens": 16}
    alone = [text_of(client, POEM, seed=seed, **options) for seed in (1, 2)]
    with ThreadPoolExecutor(8) as pool:
        busy = list(pool.map(lambda seed: text_of(client, POEM, seed=seed, **options), (1, 2, 3, 4, 5, 1, 2, 6)))
    assert alone[0] != alone[1]
    assert busy[:2] == busy[5:7] == alone
    assert len({text_of(client, POEM, temperature=1.5, max_tokens=16) for _ in range(2)}) == 2  # no seed: new ones


def test_sixteen_requests_of_all_kinds_at_once(
    client: openai.OpenAI, reference: tuple[Answer, ...], tokenizer: Tokenizer
) -> None:
    """Greedy ones are the reference's still, beside sampled, streamed, refused and long ones."""

    def one(index: int) -> str:
        kind = index % 4
        if kind == 0:
            check(reference[index], greedy(client, reference[index]), tokenizer)
            return "checked"
        if kind == 1:
            chunks = list(ask(client, POEM, stream=True, temperature=1.0, max_tokens=20))
            return str(chunks[-1].choices[0].finish_reason)
        if kind == 2:
            with pytest.raises(openai.BadRequestError) as refused:
                ask(client, temperature=5)
            return str(refused.value.param)
        answer = reference[-1 if index == 3 else index]  # the last one is long
        check(answer, greedy(client, answer), tokenizer)
        return "checked"

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(16)))
    assert found[0::4] == ["checked"] * 4
    assert set(found[1::4]) <= {"stop", "length"}
    assert found[2::4] == ["temperature"] * 4
    assert found[3::4] == ["checked"] * 4


def test_the_ready_line_and_the_models_page_tell_what_is_served(server: RunningServer, client: openai.OpenAI) -> None:
    (line,) = server.stdout.splitlines()
    assert line.startswith(f"Serving {MODEL} at {server.url}/v1 · backend ")
    assert "flattened batching" in line
    assert "context 8192" in line
    assert [model.id for model in client.models.list()] == [MODEL]
    assert "Traceback" not in server.log


def test_the_api_process_holds_no_mlx(server: RunningServer) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    assert "libmlx" not in maps.read_text()
    assert "libmlx" in Path(f"/proc/{server.engine_pid()}/maps").read_text()
