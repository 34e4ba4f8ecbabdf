"""Engine and LLM on the default model, and on tiny ones."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from anllm import LLM, Engine
from anllm.config import CacheConfig, Execution, ModelConfig, SchedulerConfig
from anllm.core.request import FinishReason, SamplingParams
from anllm.engine.driver import Status
from anllm.errors import ConfigError, InvalidRequestError, ModelError, StepError
from e2e.reference import NUM_TOKENS, Answer, model_folder

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(400)]

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PARIS = [{"role": "user", "content": "What is the capital of France?"}]


# -- the default model -------------------------------------------------------------------------------------------------


def test_greedy_tokens_all_at_once_are_mlx_lms_own(llm: LLM, reference: tuple[Answer, ...]) -> None:
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    ids = [engine.submit(answer.prompt, params) for answer in reference]
    ends = engine.run_until_complete(ids)
    excused = sum(answer.check_tokens(ends[i].new_token_ids) for i, answer in zip(ids, reference, strict=True))
    print(f"{excused} of {len(reference)} answers differ after a near tie")  # noqa: T201 - shown with -rP
    assert excused <= 2


def test_greedy_tokens_alone_are_mlx_lms_own(llm: LLM, reference: tuple[Answer, ...]) -> None:
    engine = llm.engine
    for answer in reference[:3]:
        request_id = engine.submit(answer.prompt, SamplingParams(temperature=0, max_tokens=NUM_TOKENS))
        answer.check_tokens(engine.run_until_complete([request_id])[request_id].new_token_ids)


def test_chat(llm: LLM) -> None:
    ((answer,),) = llm.chat([PARIS], GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason is FinishReason.STOP
    assert answer.token_ids[-1] in llm.tokenizer.eos_token_ids
    assert llm.tokenizer.decode(answer.token_ids) == answer.text


def test_generate(llm: LLM) -> None:
    answers = llm.generate(["The sky is", "1, 2, 3, 4, 5,"], GREEDY)
    assert [len(answer) for answer in answers] == [1, 1]
    assert answers[1][0].text.startswith(" 6, 7, 8")
    assert answers[1][0].finish_reason is FinishReason.LENGTH
    assert len(answers[1][0].token_ids) == 12
    assert llm.generate([], GREEDY) == []


def test_several_answers_and_seeds(llm: LLM) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=8, n=3, seed=5)
    (first,) = llm.generate(["Once upon a time"], params)
    again, other = llm.generate(["Once upon a time", "The sea"], params)
    assert first == again
    assert len({answer.text for answer in first}) == 3
    assert len(other) == 3
    (one,) = llm.generate(["Once upon a time"], SamplingParams(temperature=1.2, max_tokens=8, seed=5))
    assert one[0] == first[0]


def test_stop_strings(llm: LLM) -> None:
    ((whole,),) = llm.generate(["1, 2, 3, 4, 5,"], GREEDY)
    ((cut,),) = llm.generate(["1, 2, 3, 4, 5,"], SamplingParams(temperature=0, max_tokens=12, stop=(", 8",)))
    assert cut.text == " 6, 7"
    assert cut.finish_reason is FinishReason.STOP
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert llm.engine.num_open == 0


def test_stop_tokens(llm: LLM) -> None:
    ((whole,),) = llm.generate(["1, 2, 3, 4, 5,"], GREEDY)
    stop = whole.token_ids[3]
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,))
    ((cut,),) = llm.generate(["1, 2, 3, 4, 5,"], params)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert cut.finish_reason is FinishReason.STOP


def test_streams_side_by_side(llm: LLM) -> None:
    engine = llm.engine
    prompts = [llm.tokenizer.encode(text, add_special_tokens=True) for text in ("The sky is", "Water boils at")]
    expected = [list(answer[0].token_ids) for answer in llm.generate(["The sky is", "Water boils at"], GREEDY)]

    async def read(prompt: list[int]) -> list[int]:
        return [
            token async for polled in engine.stream(engine.submit(prompt, GREEDY)) for token in polled.new_token_ids
        ]

    async def read_both() -> list[list[int]]:
        return list(await asyncio.gather(*map(read, prompts)))

    assert asyncio.run(read_both()) == expected


# -- tiny models -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with more rows than its tokenizer has tokens (I-9): 49,152 of 50,000."""
    from runner.folders import save

    folder = tmp_path_factory.mktemp("models") / "padded"
    save(folder, vocab_size=50_000, max_position_embeddings=600, num_hidden_layers=2, tie_word_embeddings=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder() / name, folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Iterator[LLM]:
    loaded = LLM(str(tiny_folder))
    yield loaded
    loaded.close()


def test_rows_of_the_vocabulary_without_a_token_do_no_harm(tiny: LLM) -> None:
    prompts = ["Once"] * 10
    answers = tiny.generate(prompts, SamplingParams(temperature=2, max_tokens=500, ignore_eos=True, seed=1))
    tokens = [token for (answer,) in answers for token in answer.token_ids]
    assert len(tokens) == 5000
    assert all(isinstance(answer.text, str) for (answer,) in answers)


def test_a_prompt_that_fills_the_context_is_refused_and_others_go_on(tiny: LLM) -> None:
    with pytest.raises((InvalidRequestError, StepError), match="maximum context length is 600 tokens"):
        tiny.generate(["word " * 700, "Once"], GREEDY)
    assert tiny.engine.num_open == 0
    assert len(tiny.generate(["Once"], GREEDY)[0][0].token_ids) == 12


def test_an_empty_prompt_is_refused(tiny: LLM) -> None:
    with pytest.raises((InvalidRequestError, StepError), match="at least one token"):
        tiny.generate([""], GREEDY)


def test_the_context_ends_an_answer(tiny: LLM) -> None:
    ((answer,),) = tiny.generate(["Once"], SamplingParams(temperature=0, ignore_eos=True))
    prompt = tiny.tokenizer.encode("Once", add_special_tokens=True)
    assert len(prompt) + len(answer.token_ids) == 600
    assert answer.finish_reason is FinishReason.LENGTH


def test_many_more_sequences_than_slots(tiny_folder: Path) -> None:
    """Two at a time by memory, twelve in all: each answer is what it is alone."""
    scheduler = SchedulerConfig(max_num_seqs=4)
    with Engine(str(tiny_folder), cache=CacheConfig(kv_memory_bytes=1400 * 1024), scheduler=scheduler) as engine:
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        prompts = [[7 * i + j for j in range(1, 20 + 40 * (i % 5))] for i in range(12)]
        alone = [engine.run_until_complete([engine.submit(prompt, params)]) for prompt in prompts]
        ids = [engine.submit(prompt, params) for prompt in prompts]
        together = engine.run_until_complete(ids)
        expected = [next(iter(one.values())).new_token_ids for one in alone]
        assert [together[i].new_token_ids for i in ids] == expected


def test_an_abort_leaves_the_others_alone(tiny: LLM) -> None:
    engine = tiny.engine
    expected = engine.run_until_complete([engine.submit([1, 2, 3], GREEDY)]).popitem()[1].new_token_ids
    kept, dropped = engine.submit([1, 2, 3], GREEDY), engine.submit([4, 5, 6], GREEDY)
    engine.step()
    engine.abort(dropped)
    assert engine.run_until_complete([kept])[kept].new_token_ids == expected
    with pytest.raises(KeyError):
        engine.poll(dropped)


def test_errors_come_through_poll(tiny: LLM) -> None:
    engine = tiny.engine
    request_id = engine.submit([], GREEDY)
    polled = engine.run_until_complete([request_id])[request_id]
    assert polled.status is Status.FAILED
    assert "at least one token" in str(polled.error)
    with pytest.raises(ValueError, match="n=1"):
        engine.submit([1], SamplingParams(n=2))


@pytest.mark.parametrize("execution", ["compatible", "sequential"])
def test_the_other_ways_of_calling_give_the_same_tokens(tiny_folder: Path, tiny: LLM, execution: str) -> None:
    texts = ["Once upon a time", "word " * 60, "The"]
    other = LLM(str(tiny_folder), model_config=ModelConfig(execution=Execution(execution)))
    try:
        assert other.engine.info.execution == execution
        assert other.generate(texts, GREEDY) == tiny.generate(texts, GREEDY)
    finally:
        other.close()


def test_a_model_without_a_chat_template_does_not_chat(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_folder, folder)
    (folder / "tokenizer_config.json").write_text("{}")
    base = LLM(str(folder))
    try:
        with pytest.raises(InvalidRequestError, match="no chat template"):
            base.chat([PARIS])
    finally:
        base.close()


def test_models_that_are_none_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="There is no model folder"):
        LLM("/no/such/folder")
    with pytest.raises(ModelError, match="max_model_len is 601"):
        Engine(str(tiny_folder), model_config=ModelConfig(max_model_len=601))
    with pytest.raises(ConfigError, match="memory_fraction"):
        Engine(str(tiny_folder), cache=CacheConfig(memory_fraction=0))
