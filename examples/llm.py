"""Text in, text out: a batch of prompts, and a batch of conversations."""

from anllm import LLM, SamplingParams


def main() -> None:
    llm = LLM()  # the default model; LLM("org/name") for another
    params = SamplingParams(temperature=0, max_tokens=16)
    prompts = ["The sky is", "Water boils at"]
    for prompt, answers in zip(prompts, llm.generate(prompts, params), strict=True):
        print(f"{prompt!r} -> {answers[0].text!r} ({answers[0].finish_reason})")
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    print(llm.chat([conversation], params)[0][0].text)
    llm.close()


if __name__ == "__main__":
    main()
