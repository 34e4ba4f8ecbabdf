"""lm-eval: choices by their log probabilities and free text as `local-completions`, free text as
`local-chat-completions`. The tasks are those in lm-eval/, and what they find is what plain requests say."""

from __future__ import annotations

import functools
import json
import os
import urllib.request
from pathlib import Path

import lm_eval
import requests
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from checks import API, MODEL, main, raises

FACTS = [json.loads(line) for line in Path("lm-eval/facts.jsonl").read_text(encoding="utf-8").splitlines()]
LIMITS = {"max_tokens": 12, "stop": ["\n", "."], "temperature": 0}  # lm-eval/facts_text.yaml has the same
CLOSE = 1e-2
WAYS = ({"tokenized_requests": True}, {"tokenized_requests": False}, {"tokenized_requests": True, "batch_size": 4})


def post(path, **fields):
    body = json.dumps({"model": MODEL, **fields}).encode()
    request = urllib.request.Request(f"{API}/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]


@functools.cache
def score(question, choice):
    """What lm-eval should find: the log probability, and whether the model would write this by itself."""
    logprobs = post("completions", prompt=question + choice, max_tokens=0, echo=True, logprobs=1)["logprobs"]
    offsets = zip(logprobs["token_logprobs"], logprobs["text_offset"], strict=True)
    values = [value for value, offset in offsets if offset >= len(question)]
    written = post("completions", prompt=question, max_tokens=len(values), temperature=0, logprobs=1)
    is_greedy = written["text"] == choice
    assert not is_greedy or abs(sum(written["logprobs"]["token_logprobs"]) - sum(values)) < CLOSE
    return sum(values), is_greedy


@functools.cache
def evaluate(*tasks, api="completions", is_chat=False, **arguments):
    """Each task's figures and samples, which are in the order of the questions and as many."""
    found = lm_eval.simple_evaluate(
        model="local-chat-completions" if is_chat else "local-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{API}/{api}",
            "tokenizer": os.environ["ANLLM_TOKENIZER"],
            "num_concurrent": 4,
            "max_retries": 1,
            **arguments,
        },
        tasks=list(tasks),
        task_manager=TaskManager(include_path="lm-eval", include_defaults=False),
        apply_chat_template=is_chat,
    )
    samples = {task: sorted(found["samples"][task], key=lambda sample: sample["doc_id"]) for task in tasks}
    assert all([sample["doc"] for sample in samples[task]] == FACTS for task in tasks)
    return [(found["results"][task], samples[task]) for task in tasks]


def generator(**arguments):
    fields = {"model": MODEL, "base_url": f"{API}/completions", "tokenizer_backend": None, "max_retries": 1}
    return LocalCompletionsAPI(**{**fields, **arguments})


def instances(prompts, **fields):
    return [Instance("generate_until", {}, (prompt, fields), index) for index, prompt in enumerate(prompts)]


def scripted_texts_of_many_at_once_go_to_their_questions():
    prompts = [f"Once {'x' * index}" for index in range(32)]
    found = generator(num_concurrent=16).generate_until(instances(prompts, until=["#"], max_gen_toks=20))
    assert found == [post("completions", prompt=prompt, max_tokens=20, stop=["#"])["text"] for prompt in prompts]
    assert {len(text) for text in found} == {20} and len(set(found)) > 1


def scripted_stop_strings_end_a_text():
    whole = post("completions", prompt="Once", max_tokens=20)["text"]
    assert generator().generate_until(instances(["Once"], until=[whole[4:7]], max_gen_toks=20)) == [whole[:4]]


def scripted_mistakes_become_the_clients_exceptions():
    for fields, kind, status in (({"temperature": 5}, {}, 400), ({}, {"model": "other"}, 404)):
        error = raises(requests.HTTPError, generator(**kind).generate_until, instances(["Once"], until=["#"], **fields))
        assert error.response.status_code == status and error.response.json()["error"]["message"]


def model_choices_score_what_plain_requests_say():
    expected = [[score(fact["question"], choice) for choice in fact["choices"]] for fact in FACTS]
    best = [max(range(len(scores)), key=lambda index: scores[index][0]) for scores in expected]
    num_right = sum(index == fact["answer"] for index, fact in zip(best, FACTS, strict=True))
    assert FACTS[0]["choices"][best[0]] == " Paris" and len(FACTS) // 2 < num_right
    assert {is_greedy for scores in expected for _, is_greedy in scores} == {True, False}
    for way in WAYS:
        (figures, samples), _ = evaluate("facts_choice", "facts_text", **way)
        for sample, scores in zip(samples, expected, strict=True):
            for ((value, is_greedy),), (wanted, is_written) in zip(sample["resps"], scores, strict=True):
                assert abs(value - wanted) < CLOSE and is_greedy == is_written, (way, sample)
        assert abs(figures["acc,none"] - num_right / len(FACTS)) < 1e-9


def model_texts_are_those_of_plain_requests():
    expected = [post("completions", prompt=fact["question"], **LIMITS)["text"] for fact in FACTS]
    assert expected[0].startswith(" Paris")
    num_right = sum(text == fact["choices"][fact["answer"]] for text, fact in zip(expected, FACTS, strict=True))
    for way in WAYS:
        _, (figures, samples) = evaluate("facts_choice", "facts_text", **way)
        assert [sample["resps"] for sample in samples] == [[[text]] for text in expected]
        assert abs(figures["exact_match,none"] - num_right / len(FACTS)) < 1e-9


def model_chats_are_those_of_plain_requests():
    questions = [[{"role": "user", "content": fact["question"]}] for fact in FACTS]
    expected = [post("chat/completions", messages=messages, **LIMITS)["message"]["content"] for messages in questions]
    ((_, samples),) = evaluate("facts_text", api="chat/completions", is_chat=True)
    assert [sample["resps"] for sample in samples] == [[[text]] for text in expected]


if __name__ == "__main__":
    main(globals())
