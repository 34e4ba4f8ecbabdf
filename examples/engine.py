"""Token ids in, token ids out. The second request joins while the first one runs."""

from anllm import Engine, SamplingParams

PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is", as the default model's tokenizer writes it


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Engine() as engine:  # the default model; Engine("org/name") for another
        first = engine.submit(PROMPT, params)
        engine.step()  # computes the prompt and the first new token
        second = engine.submit(PROMPT, params)
        ended = engine.run_until_complete()
        for request_id in (first, second):
            print(request_id, ended[request_id].finish_reason, ended[request_id].new_token_ids)


if __name__ == "__main__":
    main()
