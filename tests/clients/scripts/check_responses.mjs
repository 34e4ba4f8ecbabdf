// openai for Node, the Responses API.

import assert from "node:assert/strict";
import OpenAI from "openai";
import {
  API, CALL_OSLO, CALL_TWICE, CAPITAL, CITY, GREETING, LOOK, MODEL, NUM_PROMPT, OSLO, PERSON, THOUGHT, UNICODE,
  WRITE_ANN,
  atOnce, main, numOpen, raises, repeated, told, untilBusy, untilIdle,
} from "./checks.mjs";

const client = new OpenAI({ baseURL: API, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const ask = (input = "greet", fields = {}, options = {}) =>
  client.responses.create({ model: MODEL, input, ...fields }, options);
const tool = (parameters = CITY, name = "get_weather") => ({ type: "function", name, parameters, strict: true });
const NAMED = { type: "function", name: "get_weather" };
const ANN = { name: "Ann", age: 31 };
const jsonSchema = (schema) => ({ format: { type: "json_schema", name: "form", schema, strict: true } });
const user = (content) => ({ role: "user", content });

async function collect(stream) {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
}
const textIn = (events) =>
  events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");

/** Name and arguments of each call, which all have ids of their own. */
function callsOf(response) {
  const calls = response.output.filter((item) => item.type === "function_call");
  assert.ok(calls.every((call) => call.call_id.startsWith("call_") && call.id.startsWith("fc_")));
  assert.equal(new Set(calls.map((call) => call.call_id)).size, calls.length);
  return calls.map((call) => [call.name, JSON.parse(call.arguments)]);
}
const resultsOf = (response) =>
  response.output
    .filter((item) => item.type === "function_call")
    .map((item) => ({ type: "function_call_output", call_id: item.call_id, output: "12 degrees" }));

/** What the client's helper puts together. */
const streamed = (input = "greet", fields = {}) =>
  client.responses.stream({ model: MODEL, input, ...fields }).finalResponse();

await main({
  async scripted_an_answer_has_text_status_and_usage() {
    const answer = await ask();
    assert.deepEqual([answer.status, answer.output_text, answer.model], ["completed", GREETING, MODEL]);
    assert.deepEqual(answer.output.map((item) => [item.type, item.role]), [["message", "assistant"]]);
    assert.equal(answer.usage.input_tokens, NUM_PROMPT);
    assert.equal(answer.usage.output_tokens, GREETING.length + 1);
    assert.equal(answer.usage.total_tokens, NUM_PROMPT + GREETING.length + 1);
  },

  async scripted_a_stream_gives_the_same() {
    const events = await collect(ask("greet", { stream: true }));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
    assert.deepEqual([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
    assert.equal(textIn(events), GREETING);
    const final = await streamed();
    assert.deepEqual([final.status, final.output_text], ["completed", GREETING]);
  },

  async scripted_the_whole_conversation_arrives() {
    const turns = [["system", "Be brief."], ["user", "Hé 😀"], ["assistant", "Yes?"], ["user", "repeat"]];
    const items = turns.map(([role, content]) => ({ role, content }));
    assert.equal((await ask(items)).output_text, repeated(...turns));
    assert.equal((await ask(items.slice(1), { instructions: "Be brief." })).output_text, repeated(...turns));
  },

  async scripted_a_response_goes_on_from_another_and_is_kept() {
    const first = await ask();
    const second = await ask("repeat", { previous_response_id: first.id });
    assert.equal(second.output_text, repeated(["user", "greet"], ["assistant", GREETING], ["user", "repeat"]));
    assert.equal((await ask([user("greet"), ...first.output, user("repeat")])).output_text, second.output_text);
    assert.equal((await client.responses.retrieve(second.id)).output_text, second.output_text);
    const items = [];
    for await (const item of client.responses.inputItems.list(second.id, { order: "asc", limit: 1 })) items.push(item);
    assert.deepEqual(items.map((item) => item.role), ["user", "assistant", "user"]);
    await client.responses.delete(first.id);
    await raises(OpenAI.NotFoundError, () => client.responses.retrieve(first.id));
    const error = await raises(OpenAI.BadRequestError, () => ask("greet", { previous_response_id: second.id }));
    assert.equal(error.code, "previous_response_not_found");
  },

  async scripted_a_limit_makes_it_incomplete() {
    const answer = await ask("greet", { max_output_tokens: 5 });
    assert.deepEqual([answer.status, answer.output_text], ["incomplete", "Hello"]);
    assert.equal(answer.incomplete_details.reason, "max_output_tokens");
    const events = await collect(ask("greet", { max_output_tokens: 5, stream: true }));
    assert.equal(events.at(-1).type, "response.incomplete");
  },

  async scripted_log_probabilities() {
    const fields = { include: ["message.output_text.logprobs"], top_logprobs: 2 };
    const entries = (await ask("greet", fields)).output[0].content[0].logprobs;
    assert.equal(entries.map((entry) => entry.token).join(""), GREETING);
    assert.ok(entries.every((entry) => entry.top_logprobs.length === 2));
  },

  async scripted_unicode_comes_through_whole_and_streamed() {
    assert.equal((await ask("unicode")).output_text, UNICODE);
    assert.equal(textIn(await collect(ask("unicode", { stream: true }))), UNICODE);
  },

  async scripted_a_tool_is_called_and_its_result_answered() {
    let called;
    for (const tool_choice of ["auto", "required", NAMED]) {
      const fields = { tools: [tool()], tool_choice };
      called = await ask(CALL_OSLO, fields);
      assert.deepEqual(callsOf(called), [["get_weather", { city: "Oslo" }]]);
      assert.deepEqual(callsOf(await streamed(CALL_OSLO, fields)), callsOf(called));
    }
    const kept = await ask(resultsOf(called), { tools: [tool()], previous_response_id: called.id });
    const items = [user(CALL_OSLO), ...called.output, ...resultsOf(called)];
    const byHand = await ask(items, { tools: [tool()], store: false });
    assert.deepEqual([kept.output_text, byHand.output_text], [told("12 degrees"), told("12 degrees")]);
  },

  async scripted_several_calls_and_words_before_them() {
    const fields = { tools: [tool(), { type: "web_search" }] };
    const expected = [["get_weather", { city: "Oslo" }], ["get_weather", { city: "Bergen" }]];
    assert.deepEqual(callsOf(await ask(CALL_TWICE, fields)), expected);
    assert.deepEqual(callsOf(await streamed(CALL_TWICE, fields)), expected);
    const one = await ask(CALL_TWICE, { ...fields, parallel_tool_calls: false });
    assert.deepEqual(callsOf(one), expected.slice(0, 1));
    const look = await streamed(CALL_OSLO.replace("call", "look"), fields);
    assert.equal(look.output_text.trim(), LOOK);
    assert.deepEqual(callsOf(look), expected.slice(0, 1));
  },

  async scripted_what_binds_a_model_that_wants_something_else() {
    const fields = { tools: [tool(OSLO, "get_time"), tool(OSLO)], tool_choice: NAMED };
    assert.deepEqual(callsOf(await ask("greet", fields)), [["get_weather", { city: "Oslo" }]]);
    assert.deepEqual(JSON.parse((await ask("greet", { text: jsonSchema(OSLO) })).output_text), { city: "Oslo" });
  },

  async scripted_answers_are_parsed() {
    const parsed = await client.responses.parse({ model: MODEL, input: WRITE_ANN, text: jsonSchema(PERSON) });
    assert.deepEqual(JSON.parse(parsed.output_text), ANN);
    assert.deepEqual(JSON.parse((await streamed(WRITE_ANN, { text: jsonSchema(PERSON) })).output_text), ANN);
  },

  async scripted_mistakes_become_the_clients_exceptions() {
    for (const stream of [false, true]) {
      const error = await raises(OpenAI.BadRequestError, () => ask("greet", { temperature: 5, stream }));
      assert.deepEqual([error.param, error.code], ["temperature", "decimal_above_max_value"]);
      const refused = await raises(OpenAI.BadRequestError, () => ask("greet", { conversation: "conv_1", stream }));
      assert.deepEqual([refused.param, refused.code], ["conversation", "unsupported_parameter"]);
    }
  },

  async scripted_a_stream_that_is_left_gives_its_place_back() {
    let numEvents = 0;
    for await (const _ of await ask("slow", { stream: true })) {
      if (++numEvents === 40) {
        assert.equal(await numOpen(), 1);
        break;
      }
    }
    await untilIdle();
    const controller = new AbortController();
    const error = raises(OpenAI.APIUserAbortError, () => ask("slow", {}, { signal: controller.signal }));
    await untilBusy();
    controller.abort();
    await error;
    await untilIdle();
  },

  async scripted_sixteen_at_once() {
    const texts = await atOnce(async (index) => {
      const fields = { max_output_tokens: 4 + index };
      return index % 2 ? textIn(await collect(ask("greet", { ...fields, stream: true }))) : (await ask("greet", fields)).output_text;
    });
    assert.deepEqual(texts, texts.map((_, index) => GREETING.slice(0, 4 + index)));
  },

  async thinking_a_thought_is_an_item_before_answers_and_calls() {
    for (const answer of [await ask(), await streamed()]) {
      assert.deepEqual(answer.output.map((item) => item.type), ["reasoning", "message"]);
      assert.deepEqual([answer.output[0].content[0].text, answer.output_text], [THOUGHT, GREETING]);
    }
    const fields = { tools: [tool()], store: false, include: ["reasoning.encrypted_content"] };
    const called = await ask(CALL_OSLO, fields);
    assert.deepEqual(called.output.map((item) => item.type), ["reasoning", "function_call"]);
    const final = await ask([user(CALL_OSLO), ...called.output, ...resultsOf(called)], fields);
    assert.equal(final.output_text, told("12 degrees"));
    const summed = await streamed("greet", { reasoning: { summary: "auto" } });
    assert.equal(summed.output[0].summary[0].text, THOUGHT);
  },

  async model_the_capital_of_france_whole_and_streamed() {
    const fields = { instructions: "You are a helpful assistant.", temperature: 0 };
    const whole = await ask(CAPITAL, fields);
    assert.match(whole.output_text, /Paris/);
    const final = await streamed(CAPITAL, fields);
    assert.deepEqual([final.output_text, final.usage.output_tokens], [whole.output_text, whole.usage.output_tokens]);
  },

  async model_a_forced_call_fits_its_schema() {
    const fields = { tools: [tool()], tool_choice: "required", temperature: 0, parallel_tool_calls: false };
    const [[name, { city, ...others }]] = callsOf(await ask("How is the weather in Oslo?", fields));
    assert.deepEqual([name, typeof city, others], ["get_weather", "string", {}]);
  },
});
