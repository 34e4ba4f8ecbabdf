// Vercel's ai with @ai-sdk/openai-compatible.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, streamText, tool } from "ai";
import {
  API, CAPITAL, GREETING, MODEL, NUM_PROMPT, UNICODE,
  atOnce, main, numOpen, raises, repeated, untilBusy, untilIdle,
} from "./checks.mjs";

const anllm = createOpenAICompatible({ name: "anllm", baseURL: API, apiKey: "none", includeUsage: true });
const ask = (fields = {}) => generateText({ model: anllm(MODEL), prompt: "greet", maxRetries: 0, ...fields });

/** What a stream gave: text, pieces of text, finish reason, usage. Throws the stream's error. */
async function streamed(fields = {}) {
  const result = streamText({ model: anllm(MODEL), prompt: "greet", maxRetries: 0, onError() {}, ...fields });
  const pieces = [];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") pieces.push(part.text);
  }
  return { pieces, text: pieces.join(""), finishReason: await result.finishReason, usage: await result.usage };
}

const person = jsonSchema({
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
});

await main({
  async scripted_an_answer_has_text_reason_and_usage() {
    const answer = await ask();
    assert.equal(answer.text, GREETING);
    assert.equal(answer.finishReason, "stop");
    assert.equal(answer.response.modelId, MODEL);
    assert.equal(answer.usage.inputTokens, NUM_PROMPT);
    assert.equal(answer.usage.outputTokens, GREETING.length + 1);
    assert.equal(answer.usage.totalTokens, NUM_PROMPT + GREETING.length + 1);
    assert.deepEqual(answer.warnings ?? [], []);
  },

  async scripted_a_stream_gives_the_same() {
    const found = await streamed();
    assert.deepEqual([found.text, found.finishReason], [GREETING, "stop"]);
    assert.equal(found.usage.inputTokens, NUM_PROMPT);
    assert.equal(found.usage.outputTokens, GREETING.length + 1);
  },

  async scripted_the_whole_conversation_arrives() {
    const messages = [
      { role: "user", content: "Hé 😀" },
      { role: "assistant", content: "Yes?" },
      { role: "user", content: [{ type: "text", text: "repeat" }] },
    ];
    const fields = { prompt: undefined, system: "Be brief.", messages };
    const expected = repeated(["system", "Be brief."], ["user", "Hé 😀"], ["assistant", "Yes?"], ["user", "repeat"]);
    assert.equal((await ask(fields)).text, expected);
    assert.equal((await streamed(fields)).text, expected);
  },

  async scripted_stop_strings_and_limits_end_an_answer() {
    for (const [fields, text, reason] of [
      [{ stopSequences: [" Ann"] }, "Hello there,", "stop"],
      [{ maxOutputTokens: 5 }, "Hello", "length"],
    ]) {
      for (const found of [await ask(fields), await streamed(fields)])
        assert.deepEqual([found.text, found.finishReason], [text, reason]);
    }
  },

  async scripted_unicode_comes_through_whole_and_streamed() {
    assert.equal((await ask({ prompt: "unicode" })).text, UNICODE);
    const found = await streamed({ prompt: "unicode" });
    assert.equal(found.text, UNICODE);
    assert.ok(found.pieces.length > 1);
  },

  async scripted_completions() {
    const fields = { model: anllm.completionModel(MODEL), prompt: "Once", maxOutputTokens: 20 };
    const whole = await ask(fields);
    assert.deepEqual([whole.text.length, whole.finishReason], [20, "length"]);
    assert.equal((await streamed(fields)).text, whole.text);
  },

  async scripted_mistakes_become_the_clients_exceptions() {
    for (const call of [() => ask({ temperature: 5 }), () => streamed({ temperature: 5 })]) {
      const error = await raises(APICallError, call);
      assert.equal(error.statusCode, 400);
      assert.equal(error.isRetryable, false);
      assert.match(error.message, /temperature/);
      const { param, code } = JSON.parse(error.responseBody).error;
      assert.deepEqual([param, code], ["temperature", "decimal_above_max_value"]);
      assert.ok(error.responseHeaders["x-request-id"]);
    }
    const error = await raises(APICallError, () => ask({ model: anllm("other") }));
    assert.equal(error.statusCode, 404);
    assert.equal(error.data.error.code, "model_not_found");
  },

  async scripted_what_is_not_there_yet_is_refused_by_name() {
    const now = tool({ description: "The time.", inputSchema: jsonSchema({ type: "object", properties: {} }) });
    for (const [fields, name] of [
      [{ tools: { now } }, /^tool/],
      [{ output: Output.object({ schema: person }) }, /^response_format/],
    ]) {
      const error = await raises(APICallError, () => ask(fields));
      assert.equal(error.statusCode, 400);
      assert.equal(error.data.error.code, "unsupported_parameter");
      assert.match(error.data.error.param, name);
    }
  },

  async scripted_headers_can_be_seen() {
    assert.ok((await ask()).response.headers["x-request-id"]);
    const named = await ask({ headers: { "X-Request-Id": "mine-1" } });
    assert.equal(named.response.headers["x-request-id"], "mine-1");
  },

  async scripted_a_stream_that_is_aborted_gives_its_place_back() {
    const controller = new AbortController();
    const result = streamText({
      model: anllm(MODEL), prompt: "slow", maxRetries: 0, abortSignal: controller.signal, onError() {},
    });
    let numPieces = 0;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta" && ++numPieces === 5) {
        assert.equal(await numOpen(), 1);
        controller.abort();
      }
    }
    assert.ok(numPieces >= 5);
    await untilIdle();
    assert.equal((await ask()).text, GREETING);
  },

  async scripted_a_request_that_is_aborted_gives_its_place_back() {
    const controller = new AbortController();
    const error = raises(Error, () => ask({ prompt: "slow", abortSignal: controller.signal }));
    await untilBusy();
    controller.abort();
    assert.equal((await error).name, "AbortError");
    await untilIdle();
  },

  async scripted_sixteen_at_once() {
    const texts = await atOnce(async (index) => {
      const fields = { maxOutputTokens: 4 + index };
      return (index % 2 ? await streamed(fields) : await ask(fields)).text;
    });
    assert.deepEqual(texts, texts.map((_, index) => GREETING.slice(0, 4 + index)));
  },

  async model_the_capital_of_france_whole_and_streamed() {
    const fields = { system: "You are a helpful assistant.", prompt: CAPITAL, temperature: 0 };
    const whole = await ask(fields);
    assert.match(whole.text, /Paris/);
    const found = await streamed(fields);
    assert.deepEqual([found.text, found.finishReason], [whole.text, whole.finishReason]);
    assert.equal(found.usage.outputTokens, whole.usage.outputTokens);
  },

  async model_a_seed_repeats_an_answer() {
    const texts = [];
    for (const seed of [1, 1, 2])
      texts.push((await ask({ prompt: "Write a poem.", seed, temperature: 1.2, maxOutputTokens: 16 })).text);
    assert.equal(texts[0], texts[1]);
    assert.notEqual(texts[0], texts[2]);
  },
});
