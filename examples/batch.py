"""A file of prompts, one a line, answered without a server as one batch; one JSON object a line comes out.

python examples/batch.py prompts.txt > answers.jsonl
"""

import json
import sys
from pathlib import Path

from anllm import LLM, SamplingParams


def main(prompts_file: str, max_tokens: str = "64") -> None:
    prompts = [line for line in Path(prompts_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    llm = LLM()  # the default model; LLM("org/name") for another
    try:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        params = SamplingParams(temperature=0, max_tokens=int(max_tokens))
        for prompt, answers in zip(prompts, llm.chat(conversations, params, show_progress=True), strict=True):
            answer = answers[0]
            print(json.dumps({"prompt": prompt, "answer": answer.text, "finish_reason": answer.finish_reason}))
    finally:
        llm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
