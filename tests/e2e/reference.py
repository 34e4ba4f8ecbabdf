"""mlx-lm's own greedy answers, computed in a process of its own, and how answers are held against them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anllm.store.progress import NoProgress
from anllm.store.resolve import fetch, parse_source
from anllm.text.chat_template import load_chat_template
from anllm.text.interface import Tokenizer
from anllm.text.tokenizer import load_tokenizer

NUM_TOKENS = 48
CLOSE = 1e-3  # two tokens whose logits are nearer than this may change places
QUESTIONS = [
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "Explain photosynthesis in one sentence.",
    "Give me three words that rhyme with 'cat'.",
    "Translate 'good morning' into Spanish.",
    "What is 17 + 25?",
    "Write a haiku about autumn.",
    "Name the planets of the solar system.",
    "What is a prime number?",
    "Wie heißt die Hauptstadt von Deutschland?",
]
TEXTS = [
    "The sky is blue because",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "The three laws of robotics are",
    "1, 2, 3, 4, 5,",
    "To make a good cup of tea, first",
    "In 1969, Neil Armstrong",
    "Water boils at",
    "SELECT name FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. " * 130 + "Then",  # longer than a step and two size classes
]

SCRIPT = """
import json, sys
from pathlib import Path
from anllm.runner.blas import load_blas
from anllm.runner.build import runs_on_cpu
from anllm.store.cache import cache_folder
if runs_on_cpu():
    blas = load_blas(None, cache_folder(None))
    if blas.set_threads is not None:
        blas.set_threads(1)  # OpenBLAS' threads wait for each other in busy loops, which a busy machine makes endless
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model, load_model

task = json.loads(Path(sys.argv[1]).read_text())
model, _ = load_model(Path(task["folder"]), lazy=True)
if mx.default_device() == mx.Device(mx.cpu):
    model.set_dtype(mx.float32)
    dequantize_model(model)
    model.set_dtype(mx.float32)
mx.eval(model.parameters())
answers = []
for prompt in task["prompts"]:
    cache, tokens, tops = make_prompt_cache(model), list(prompt), []
    answer = []
    while len(answer) < task["num_tokens"] and not (answer and answer[-1] in task["ends"]):
        logits = model(mx.array([tokens]), cache=cache)[0, -1].astype(mx.float32)
        best = mx.argsort(-logits)[:4]
        ids, values = best.tolist(), logits[best].tolist()
        answer.append(ids[0])
        tops.append(dict(zip(ids, values)))
        tokens = [ids[0]]
    answers.append({"tokens": answer, "tops": tops})
Path(sys.argv[2]).write_text(json.dumps(answers))
"""


@dataclass(frozen=True)
class Answer:
    """messages or text: the prompt; tokens: the reference's, with the end token if it came; tops: the best few tokens
    at each, with their logits."""

    messages: list[dict[str, str]] | None
    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    tops: tuple[dict[int, float], ...]

    def gap(self, index: int, token: int | None = None) -> float:
        """How far `token` (None: the second best) is below the best one at that place."""
        values = sorted(self.tops[index].values(), reverse=True)
        second = values[1] if token is None else self.tops[index].get(token, float("-inf"))
        return values[0] - second

    def check_tokens(self, tokens: list[int]) -> int:
        """That these are the reference's, up to a place where two candidates are as good; 1 if there is one, else 0."""
        for index, (expected, found) in enumerate(zip(self.tokens, tokens, strict=False)):
            if expected != found:
                gap = self.gap(index, found)
                assert gap < CLOSE, f"token {index}: {found} and not {expected}, {gap} apart"
                return 1
        assert len(tokens) == len(self.tokens)
        return 0

    def check_text(self, text: str, tokenizer: Tokenizer) -> int:
        """The same for their text."""
        if text == tokenizer.decode(self.tokens):
            return 0
        agreed = 0
        while agreed < len(self.tokens) and text.startswith(tokenizer.decode(self.tokens[: agreed + 1])):
            agreed += 1
        assert agreed < len(self.tokens), f"the text goes on behind its end: {text!r}"
        assert self.gap(agreed) < CLOSE, f"token {agreed} of {text!r} is not {self.tokens[agreed]}"
        return 1


@functools.cache
def model_folder() -> Path:
    """The embedded default model."""
    return fetch(parse_source(None), NoProgress())


def reference_answers(kept: Path) -> tuple[Answer, ...]:
    """For ten conversations and ten texts. Computed once for the same model, versions and prompts, and kept there."""
    folder = model_folder()
    tokenizer, template = load_tokenizer(folder), load_chat_template(folder)
    assert template is not None
    conversations: list[list[dict[str, Any]]] = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = [template.render(messages) for messages in conversations]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    prompts += [tokenizer.encode(text, add_special_tokens=True) for text in TEXTS]
    task = {
        "folder": str(folder),
        "prompts": prompts,
        "ends": sorted(tokenizer.eos_token_ids),
        "num_tokens": NUM_TOKENS,
    }
    versions = [importlib.metadata.version(name) for name in ("mlx", "mlx-lm")]
    key = hashlib.sha256(json.dumps([task, versions, SCRIPT]).encode()).hexdigest()[:16]
    found = kept / f"{key}.json"
    if not found.exists():
        given = kept / "task.json"
        given.write_text(json.dumps(task))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        part = found.with_suffix(".part")
        subprocess.run([sys.executable, "-c", SCRIPT, given, part], env=environment, check=True)
        part.rename(found)
    answers = json.loads(found.read_text())
    return tuple(
        Answer(
            messages,
            text,
            tuple(prompt),
            tuple(answer["tokens"]),
            tuple({int(token): value for token, value in top.items()} for top in answer["tops"]),
        )
        for messages, text, prompt, answer in zip(
            [*conversations, *[None] * len(TEXTS)], [*texts, *TEXTS], prompts, answers, strict=True
        )
    )
