// Vercel's ai with @ai-sdk/openai-compatible, with @ai-sdk/openai, which speaks the Responses API, and with
// @ai-sdk/anthropic, which speaks Anthropic's.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import {
  API, CALL_OSLO, CALL_TWICE, CAPITAL, CITY, GREETING, LOOK, MODEL, NUM_PROMPT, OSLO, PERSON, THOUGHT, UNICODE,
  WRITE_ANN,
  atOnce, main, numOpen, raises, repeated, told, untilBusy, untilIdle,
} from "./checks.mjs";

const anllm = createOpenAICompatible({
  name: "anllm", baseURL: API, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
});
// As it is without further words: it asks for any JSON, and says in words which.
const plain = createOpenAICompatible({ name: "anllm", baseURL: API, apiKey: "none" });
const openai = createOpenAI({ baseURL: API, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: API, apiKey: "none" });
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

const ANN = { name: "Ann", age: 31 };

/** A tool, and what it was called with. */
function weather(schema = CITY) {
  const asked = [];
  const execute = async ({ city }) => {
    asked.push(city);
    return `12 degrees in ${city}`;
  };
  const get_weather = tool({ description: "The weather in a city.", inputSchema: jsonSchema(schema), execute });
  return { asked, tools: { get_weather } };
}
const callsOf = (step) => step.toolCalls.map((call) => [call.toolName, call.input]);

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

  async scripted_tools_are_called_and_their_results_answered() {
    const expected = [["get_weather", { city: "Oslo" }], ["get_weather", { city: "Bergen" }]];
    for (const [prompt, steps] of [
      [CALL_OSLO, [expected.slice(0, 1), []]],
      [CALL_TWICE, [expected, []]],
      [`${CALL_OSLO} then ${CALL_OSLO.replace("Oslo", "Bergen")}`, [[expected[0]], [expected[1]], []]],
    ]) {
      const cities = steps.flat().map(([, { city }]) => city);
      for (const isStream of [false, true]) {
        const { asked, tools } = weather();
        const fields = { prompt, tools, stopWhen: stepCountIs(4), maxRetries: 0, model: anllm(MODEL) };
        const found = isStream ? streamText(fields) : await generateText(fields);
        assert.equal(await found.text, told(...cities.map((city) => `12 degrees in ${city}`)));
        assert.deepEqual(asked, cities);
        const taken = await found.steps;
        assert.deepEqual(taken.map(callsOf), steps);
        const reasons = taken.map((step) => step.finishReason);
        assert.deepEqual(reasons, [...steps.slice(1).map(() => "tool-calls"), "stop"]);
        assert.ok(taken.slice(0, -1).every((step) => step.text === ""));
        const ids = taken.flatMap((step) => step.toolCalls).map((call) => call.toolCallId);
        assert.equal(new Set(ids).size, cities.length);
      }
    }
    const { tools } = weather();
    const look = { prompt: CALL_OSLO.replace("call", "look"), tools };
    const first = await ask(look);
    assert.equal(first.text.trim(), LOOK);
    assert.deepEqual(callsOf(first), expected.slice(0, 1));
    const found = await streamed(look);
    assert.deepEqual([found.text.trim(), found.finishReason], [LOOK, "tool-calls"]);
  },

  async scripted_tool_choice() {
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      const called = await ask({ tools: weather(OSLO).tools, toolChoice, prompt: CALL_OSLO });
      assert.deepEqual(callsOf(called), [["get_weather", { city: "Oslo" }]]);
    }
    const toolChoice = { type: "tool", toolName: "get_weather" };
    assert.deepEqual(callsOf(await ask({ tools: weather(OSLO).tools, toolChoice })), [["get_weather", { city: "Oslo" }]]);
    assert.equal((await ask({ tools: weather().tools })).text, GREETING);
    assert.deepEqual(callsOf(await ask({ tools: weather().tools, toolChoice: "none", prompt: CALL_OSLO })), []);
  },

  async scripted_objects() {
    const schema = jsonSchema(PERSON);
    for (const provider of [anllm, plain]) {
      const fields = { model: provider(MODEL), prompt: WRITE_ANN, maxRetries: 0 };
      assert.deepEqual((await generateObject({ ...fields, schema })).object, ANN);
      assert.deepEqual((await ask({ ...fields, output: Output.object({ schema }) })).output, ANN);
      const result = streamText({ ...fields, output: Output.object({ schema }) });
      const seen = [];
      for await (const partial of result.partialOutputStream) seen.push(partial);
      assert.deepEqual(seen.at(-1), ANN);
      assert.ok(seen.length > 1);
    }
    const bound = await ask({ output: Output.object({ schema: jsonSchema(OSLO) }) });
    assert.deepEqual(bound.output, { city: "Oslo" });
    const { asked, tools } = weather();
    const found = await ask({
      prompt: `${CALL_OSLO} then ${WRITE_ANN}`, tools, output: Output.object({ schema }), stopWhen: stepCountIs(4),
    });
    assert.deepEqual([found.output, asked], [ANN, ["Oslo"]]);
  },

  async scripted_the_responses_api() {
    const model = openai(MODEL);
    for (const found of [await ask({ model }), await streamed({ model })]) {
      assert.deepEqual([found.text, found.finishReason], [GREETING, "stop"]);
      assert.deepEqual([found.usage.inputTokens, found.usage.outputTokens], [NUM_PROMPT, GREETING.length + 1]);
    }
    assert.deepEqual((await ask({ model, maxOutputTokens: 5 })).finishReason, "length");
    for (const store of [true, false]) { // with the ids of items that are kept, and with the items themselves
      const { asked, tools } = weather();
      const fields = {
        model, tools, prompt: `${CALL_OSLO} then ${CALL_OSLO.replace("Oslo", "Bergen")}`, stopWhen: stepCountIs(4),
        providerOptions: { openai: { store } },
      };
      const expected = told("12 degrees in Oslo", "12 degrees in Bergen");
      assert.deepEqual([(await ask(fields)).text, (await streamed(fields)).text], [expected, expected]);
      assert.deepEqual(asked, ["Oslo", "Bergen", "Oslo", "Bergen"]);
    }
    const { output } = await ask({ model, prompt: WRITE_ANN, output: Output.object({ schema: jsonSchema(PERSON) }) });
    assert.deepEqual(output, ANN);
  },

  async scripted_anthropics_api() {
    const model = anthropic(MODEL);
    for (const found of [await ask({ model }), await streamed({ model })]) {
      assert.deepEqual([found.text, found.finishReason], [GREETING, "stop"]);
      assert.deepEqual([found.usage.inputTokens, found.usage.outputTokens], [NUM_PROMPT, GREETING.length + 1]);
    }
    assert.equal((await streamed({ model, prompt: "unicode" })).text, UNICODE);
    assert.equal((await ask({ model, stopSequences: [" Ann"] })).text, "Hello there,");
    assert.equal((await ask({ model, maxOutputTokens: 5 })).finishReason, "length");
    for (const found of [ask, streamed]) {
      const { asked, tools } = weather();
      const prompt = `${CALL_TWICE} then ${CALL_OSLO}`;
      const { text } = await found({ model, tools, prompt, stopWhen: stepCountIs(4) });
      assert.deepEqual(asked, ["Oslo", "Bergen", "Oslo"]);
      assert.equal(text, told(...asked.map((city) => `12 degrees in ${city}`)));
    }
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }])
      assert.deepEqual(callsOf(await ask({ model, tools: weather(OSLO).tools, toolChoice })), [["get_weather", { city: "Oslo" }]]);
    const schema = jsonSchema(PERSON);
    const structured = { prompt: WRITE_ANN, providerOptions: { anthropic: { structuredOutputMode: "outputFormat" } } };
    assert.deepEqual((await ask({ model, ...structured, output: Output.object({ schema }) })).output, ANN);
    const error = await raises(APICallError, () => ask({ model: anthropic("other") }));
    assert.deepEqual([error.statusCode, error.data.error.type], [404, "not_found_error"]);
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

  async thinking_a_thought_comes_before_answers_calls_and_objects() {
    for (const found of [await ask(), streamText({ model: anllm(MODEL), prompt: "greet", maxRetries: 0 })])
      assert.deepEqual([await found.text, await found.reasoningText], [GREETING, THOUGHT]);
    const { asked, tools } = weather();
    const fields = { model: anllm(MODEL), prompt: CALL_OSLO, tools, stopWhen: stepCountIs(4), maxRetries: 0 };
    const result = streamText(fields);
    assert.equal(await result.text, told("12 degrees in Oslo"));
    assert.deepEqual(asked, ["Oslo"]);
    assert.deepEqual((await result.steps).map((step) => step.reasoningText), [THOUGHT, THOUGHT]);
    const schema = jsonSchema(PERSON);
    assert.deepEqual((await ask({ prompt: WRITE_ANN, output: Output.object({ schema }) })).output, ANN);
  },

  async thinking_the_responses_api_gives_thoughts_back() {
    for (const store of [true, false]) {
      const { asked, tools } = weather();
      const providerOptions = { openai: { store, forceReasoning: true, reasoningSummary: "auto" } };
      const fields = { model: openai(MODEL), prompt: CALL_OSLO, tools, stopWhen: stepCountIs(4), providerOptions };
      const found = await ask(fields);
      assert.deepEqual([found.text, found.reasoningText, asked], [told("12 degrees in Oslo"), THOUGHT, ["Oslo"]]);
      assert.equal((await streamed(fields)).text, found.text);
    }
  },

  async thinking_anthropics_api_gives_thoughts_back() {
    const bodies = [];
    const watched = (url, options) => {
      bodies.push(JSON.parse(options.body));
      return fetch(url, options);
    };
    const model = createAnthropic({ baseURL: API, apiKey: "none", fetch: watched })(MODEL);
    const providerOptions = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } };
    for (const isStream of [false, true]) {
      const { asked, tools } = weather();
      const fields = { model, tools, prompt: CALL_OSLO, stopWhen: stepCountIs(4), providerOptions, maxRetries: 0 };
      const found = isStream ? streamText(fields) : await generateText(fields);
      assert.deepEqual([await found.text, asked], [told("12 degrees in Oslo"), ["Oslo"]]);
      assert.deepEqual((await found.steps).map((step) => step.reasoningText), [THOUGHT, THOUGHT]);
      const given = bodies.at(-1).messages[1].content.map((block) => block.type);
      assert.deepEqual(given, ["thinking", "tool_use"]);
    }
    assert.equal((await ask({ model })).reasoningText, undefined);
  },

  async model_anthropics_api() {
    const fields = { model: anthropic(MODEL), prompt: CAPITAL, temperature: 0, maxOutputTokens: 100 };
    const whole = await ask(fields);
    assert.match(whole.text, /Paris/);
    assert.equal((await streamed(fields)).text, whole.text);
  },

  async model_the_capital_of_france_whole_and_streamed() {
    const fields = { system: "You are a helpful assistant.", prompt: CAPITAL, temperature: 0 };
    const whole = await ask(fields);
    assert.match(whole.text, /Paris/);
    const found = await streamed(fields);
    assert.deepEqual([found.text, found.finishReason], [whole.text, whole.finishReason]);
    assert.equal(found.usage.outputTokens, whole.usage.outputTokens);
  },

  async model_calls_and_objects_fit_their_schemas() {
    const { tools } = weather();
    const called = await ask({
      prompt: "How is the weather in Oslo?", tools, toolChoice: { type: "tool", toolName: "get_weather" }, temperature: 0,
    });
    const [[name, { city, ...others }]] = callsOf(called);
    assert.deepEqual([name, typeof city, others], ["get_weather", "string", {}]);
    const { output } = await ask({
      prompt: "Ann is 31 years old. Who is it?", output: Output.object({ schema: jsonSchema(PERSON) }), temperature: 0,
    });
    assert.deepEqual([typeof output.name, Number.isInteger(output.age)], ["string", true]);
  },

  async model_a_seed_repeats_an_answer() {
    const texts = [];
    for (const seed of [1, 1, 2])
      texts.push((await ask({ prompt: "Write a poem.", seed, temperature: 1.2, maxOutputTokens: 16 })).text);
    assert.equal(texts[0], texts[1]);
    assert.notEqual(texts[0], texts[2]);
  },
});
