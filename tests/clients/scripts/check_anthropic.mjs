// @anthropic-ai/sdk for Node: the Messages API, its beta face and its helpers.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import * as z from "zod";
import {
  CALL_OSLO, CALL_TWICE, CAPITAL, CITY, GREETING, LOOK, MODEL, NUM_PROMPT, OSLO, PERSON, THOUGHT, UNICODE, URL,
  WRITE_ANN,
  atOnce, main, numOpen, raises, repeated, told, untilBusy, untilIdle,
} from "./checks.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const user = (content) => ({ role: "user", content });
const body = (asked = "greet", fields = {}) => ({
  model: MODEL, max_tokens: 1000, messages: typeof asked === "string" ? [user(asked)] : asked, ...fields,
});
const ask = (asked, fields, options) => client.messages.create(body(asked, fields), options);
const tool = (input_schema = CITY, name = "get_weather") => ({ name, input_schema });
const NAMED = { type: "tool", name: "get_weather" };
const THINKING = { type: "enabled", budget_tokens: 1024 };
const ANN = { name: "Ann", age: 31 };
const CITIES = [["get_weather", { city: "Oslo" }], ["get_weather", { city: "Bergen" }]];

/** What the client's helper puts together. */
const streamed = (asked, fields) => client.messages.stream(body(asked, fields)).finalMessage();
const textOf = (message) =>
  message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
const kindsOf = (message) => message.content.map((block) => block.type);
const numPrompt = ({ input_tokens, cache_read_input_tokens }) => input_tokens + cache_read_input_tokens;

async function collect(stream) {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
}

/** Name and input of each call, which all have ids of their own. */
function callsOf(message) {
  const calls = message.content.filter((block) => block.type === "tool_use");
  assert.ok(calls.every((call) => call.id.startsWith("toolu_")));
  assert.equal(new Set(calls.map((call) => call.id)).size, calls.length);
  return calls.map((call) => [call.name, call.input]);
}

/** The conversation up to what the tools gave back. */
function answered(asked, called) {
  const calls = called.content.filter((block) => block.type === "tool_use");
  const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "12 degrees" }));
  return [user(asked), { role: "assistant", content: called.content }, user(results)];
}

await main({
  async scripted_an_answer_has_text_reason_and_usage() {
    const message = await ask();
    assert.deepEqual([message.type, message.role, message.model], ["message", "assistant", MODEL]);
    assert.deepEqual([kindsOf(message), textOf(message)], [["text"], GREETING]);
    assert.deepEqual([message.stop_reason, message.stop_sequence], ["end_turn", null]);
    assert.deepEqual([numPrompt(message.usage), message.usage.output_tokens], [NUM_PROMPT, GREETING.length + 1]);
    assert.ok(message._request_id);
  },

  async scripted_a_stream_gives_the_same() {
    const stream = client.messages.stream(body());
    const pieces = [];
    stream.on("text", (text) => pieces.push(text));
    const message = await stream.finalMessage();
    assert.deepEqual([pieces.join(""), textOf(message), await stream.finalText()], [GREETING, GREETING, GREETING]);
    assert.deepEqual([message.stop_reason, message.stop_sequence], ["end_turn", null]);
    assert.deepEqual([numPrompt(message.usage), message.usage.output_tokens], [NUM_PROMPT, GREETING.length + 1]);
    const events = await collect(ask("greet", { stream: true }));
    assert.deepEqual(events.map((event) => event.type).filter((type) => type !== "content_block_delta"), [
      "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]);
  },

  async scripted_the_whole_conversation_arrives() {
    const turns = [["user", "Hé 😀"], ["assistant", "Yes?"], ["user", "repeat"]];
    const cache_control = { type: "ephemeral" };
    const messages = turns.map(([role, text]) => ({ role, content: [{ type: "text", text, cache_control }] }));
    const expected = repeated(["system", "Be brief."], ...turns);
    assert.equal(textOf(await ask(messages, { system: "Be brief." })), expected);
    const system = [{ type: "text", text: "Be brief.", cache_control }];
    assert.equal(textOf(await streamed(messages, { system })), expected);
  },

  async scripted_stop_sequences_and_limits_end_an_answer() {
    for (const answer of [ask, streamed]) {
      let message = await answer("greet", { stop_sequences: ["nobody says this", " Ann"] });
      assert.deepEqual(
        [textOf(message), message.stop_reason, message.stop_sequence], ["Hello there,", "stop_sequence", " Ann"],
      );
      message = await answer("greet", { max_tokens: 5 });
      assert.deepEqual([textOf(message), message.stop_reason], ["Hello", "max_tokens"]);
    }
  },

  async scripted_unicode_comes_through_whole_and_streamed() {
    assert.equal(textOf(await ask("unicode")), UNICODE);
    assert.equal(textOf(await streamed("unicode")), UNICODE);
  },

  async scripted_a_tool_is_called_and_its_result_answered() {
    for (const answer of [ask, streamed]) {
      let called;
      for (const tool_choice of [{ type: "auto" }, { type: "any" }, NAMED]) {
        called = await answer(CALL_OSLO, { tools: [tool()], tool_choice });
        assert.deepEqual([callsOf(called), called.stop_reason], [CITIES.slice(0, 1), "tool_use"]);
      }
      assert.equal(textOf(await answer(answered(CALL_OSLO, called), { tools: [tool()] })), told("12 degrees"));
    }
  },

  async scripted_several_calls_and_words_before_them() {
    const tools = [tool(), { type: "web_search_20250305", name: "web_search" }];
    for (const answer of [ask, streamed]) {
      const called = await answer(CALL_TWICE, { tools });
      assert.deepEqual(callsOf(called), CITIES);
      const final = await answer(answered(CALL_TWICE, called), { tools });
      assert.equal(textOf(final), told("12 degrees", "12 degrees"));
      const tool_choice = { type: "auto", disable_parallel_tool_use: true };
      assert.deepEqual(callsOf(await answer(CALL_TWICE, { tools, tool_choice })), CITIES.slice(0, 1));
      const look = await answer(CALL_OSLO.replace("call", "look"), { tools });
      assert.deepEqual([kindsOf(look), textOf(look).trim()], [["text", "tool_use"], LOOK]);
    }
  },

  async scripted_what_binds_a_model_that_wants_something_else() {
    const fields = { tools: [tool(OSLO, "get_time"), tool(OSLO)], tool_choice: NAMED };
    assert.deepEqual(callsOf(await ask("greet", fields)), CITIES.slice(0, 1));
    assert.deepEqual(callsOf(await ask(CALL_OSLO, { tools: [tool()], tool_choice: { type: "none" } })), []);
    const format = { type: "json_schema", schema: OSLO };
    assert.deepEqual(JSON.parse(textOf(await ask("greet", { output_config: { format } }))), { city: "Oslo" });
  },

  async scripted_answers_are_parsed() {
    const Person = z.object({ name: z.string(), age: z.int() });
    for (const format of [zodOutputFormat(Person), jsonSchemaOutputFormat(PERSON)]) {
      const fields = { output_config: { format } };
      assert.deepEqual((await client.messages.parse(body(WRITE_ANN, fields))).parsed_output, ANN);
      assert.deepEqual((await streamed(WRITE_ANN, fields)).parsed_output, ANN);
    }
  },

  async scripted_the_clients_own_loop_of_tools() {
    const asked = [];
    const get_weather = betaZodTool({
      name: "get_weather",
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      run({ city }) {
        asked.push(city);
        return `12 degrees in ${city}`;
      },
    });
    const cities = ["Oslo", "Bergen", "Oslo"];
    const fields = body(`${CALL_TWICE} then ${CALL_OSLO}`, { tools: [get_weather], betas: ["of-tomorrow"] });
    const expected = told(...cities.map((city) => `12 degrees in ${city}`));
    assert.equal(textOf(await client.beta.messages.toolRunner(fields)), expected);
    assert.deepEqual(asked.splice(0), cities);
    let last;
    for await (const stream of client.beta.messages.toolRunner({ ...fields, stream: true }))
      last = await stream.finalMessage();
    assert.deepEqual([textOf(last), asked], [expected, cities]);
  },

  async scripted_tokens_are_counted() {
    const counted = await client.messages.countTokens({ model: MODEL, messages: [user("greet")] });
    assert.equal(counted.input_tokens, NUM_PROMPT);
  },

  async scripted_models() {
    const models = [];
    for await (const model of client.models.list()) models.push(model);
    assert.deepEqual(models.map(({ id, type, lifecycle }) => [id, type, lifecycle]), [[MODEL, "model", "active"]]);
    assert.deepEqual(await client.models.retrieve(MODEL), models[0]);
    await raises(Anthropic.NotFoundError, () => client.models.retrieve("other"));
  },

  async scripted_mistakes_become_the_clients_exceptions() {
    for (const [fields, words] of [
      [{ temperature: 5 }, /'temperature'/],
      [{ messages: [user("x".repeat(9000))] }, /prompt is too long/],
      [{ max_tokens: 0 }, /'max_tokens'/],
    ]) {
      for (const stream of [false, true]) {
        const error = await raises(Anthropic.BadRequestError, () => ask("greet", { ...fields, stream }));
        assert.match(error.message, words);
        assert.deepEqual([error.error.error.type, error.requestID], ["invalid_request_error", error.error.request_id]);
      }
    }
    const error = await raises(Anthropic.NotFoundError, () => ask("greet", { model: "other" }));
    assert.equal(error.error.error.type, "not_found_error");
  },

  async scripted_a_stream_that_is_left_gives_its_place_back() {
    let numEvents = 0;
    for await (const _ of client.messages.stream(body("slow", { max_tokens: 7000 }))) {
      if (++numEvents === 40) {
        assert.equal(await numOpen(), 1);
        break;
      }
    }
    await untilIdle();
    const controller = new AbortController();
    const error = raises(Anthropic.APIUserAbortError, () =>
      ask("slow", { max_tokens: 7000 }, { signal: controller.signal }),
    );
    await untilBusy();
    controller.abort();
    await error;
    await untilIdle();
  },

  async scripted_sixteen_at_once() {
    const texts = await atOnce(async (index) =>
      textOf(await (index % 2 ? streamed : ask)("greet", { max_tokens: 4 + index })),
    );
    assert.deepEqual(texts, texts.map((_, index) => GREETING.slice(0, 4 + index)));
  },

  async thinking_a_thought_is_a_block_before_answers_and_calls() {
    for (const answer of [ask, streamed]) {
      const message = await answer("greet", { thinking: THINKING });
      const [thought] = message.content;
      assert.deepEqual(kindsOf(message), ["thinking", "text"]);
      assert.deepEqual([thought.thinking, thought.signature, textOf(message)], [THOUGHT, "", GREETING]);
      assert.ok(message.usage.output_tokens_details.thinking_tokens > 0);
      assert.deepEqual(kindsOf(await answer()), ["text"]);
      const fields = { tools: [tool()], thinking: THINKING };
      const called = await answer(CALL_OSLO, fields);
      assert.deepEqual(kindsOf(called), ["thinking", "tool_use"]);
      assert.equal(textOf(await answer(answered(CALL_OSLO, called), fields)), told("12 degrees"));
    }
  },

  async model_the_capital_of_france_whole_and_streamed() {
    const fields = { system: "You are a helpful assistant.", temperature: 0, max_tokens: 100 };
    const whole = await ask(CAPITAL, fields);
    assert.match(textOf(whole), /Paris/);
    const message = await streamed(CAPITAL, fields);
    assert.equal(textOf(message), textOf(whole));
    assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
  },

  async model_a_forced_call_fits_its_schema() {
    const fields = { tools: [tool()], tool_choice: NAMED, temperature: 0, max_tokens: 500 };
    const [[name, { city, ...others }]] = callsOf(await ask("How is the weather in Oslo?", fields));
    assert.deepEqual([name, typeof city, others], ["get_weather", "string", {}]);
  },
});
