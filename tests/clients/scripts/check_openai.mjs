// openai for Node.

import assert from "node:assert/strict";
import OpenAI from "openai";
import {
  API, CALL_OSLO, CALL_TWICE, CAPITAL, CITY, GREETING, LOOK, MODEL, NUM_PROMPT, OSLO, PERSON, THOUGHT, UNICODE,
  WRITE_ANN,
  atOnce, main, numOpen, raises, repeated, told, untilBusy, untilIdle,
} from "./checks.mjs";

const client = new OpenAI({ baseURL: API, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const user = (content) => [{ role: "user", content }];
const ask = (fields = {}, options = {}) =>
  client.chat.completions.create({ model: MODEL, messages: user("greet"), ...fields }, options);
const complete = (fields = {}) => client.completions.create({ model: MODEL, prompt: "Once", ...fields });

async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}
const choicesOf = (chunks, index) => chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
const textOf = (chunks, index = 0) =>
  choicesOf(chunks, index).map((choice) => choice.delta.content ?? "").join("");
const reasonsOf = (chunks) =>
  chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.finish_reason).filter(Boolean);

const tool = (parameters = CITY, name = "get_weather") => ({ type: "function", function: { name, parameters } });
const NAMED = { type: "function", function: { name: "get_weather" } };
const ANN = { name: "Ann", age: 31 };
const jsonSchema = (schema) => ({ type: "json_schema", json_schema: { name: "form", strict: true, schema } });

/** Name and arguments of each call, which all have ids of their own. */
function callsOf(message) {
  const calls = message.tool_calls ?? [];
  assert.ok(calls.every((call) => call.type === "function" && call.id.startsWith("call_")));
  assert.equal(new Set(calls.map((call) => call.id)).size, calls.length);
  return calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
}

/** The same of a stream, put together by hand; what must come once comes once. */
function callsIn(chunks) {
  const found = [];
  for (const call of chunks.flatMap((chunk) => chunk.choices).flatMap((choice) => choice.delta.tool_calls ?? [])) {
    if (call.index === found.length) {
      assert.ok(call.type === "function" && call.id.startsWith("call_"));
      assert.ok(found.every((other) => other.id !== call.id));
      found.push({ id: call.id, name: call.function.name, text: "" });
    } else {
      assert.equal(call.index, found.length - 1);
      assert.deepEqual([call.id, call.type, call.function.name], [undefined, undefined, undefined]);
    }
    found.at(-1).text += call.function.arguments;
  }
  return found.map(({ name, text }) => [name, JSON.parse(text)]);
}

/** A tool for the helper that runs tools, and what it was called with. */
function runnableWeather() {
  const asked = [];
  const run = ({ city }) => {
    asked.push(city);
    return `12 degrees in ${city}`;
  };
  const described = { ...tool().function, description: "The weather in a city.", function: run, parse: JSON.parse };
  return { asked, tools: [{ type: "function", function: described }] };
}

await main({
  async scripted_an_answer_has_text_reason_and_usage() {
    const answer = await ask();
    assert.equal(answer.model, MODEL);
    assert.equal(answer.choices.length, 1);
    assert.equal(answer.choices[0].message.content, GREETING);
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.prompt_tokens, NUM_PROMPT);
    assert.equal(answer.usage.completion_tokens, GREETING.length + 1);
    assert.equal(answer.usage.total_tokens, NUM_PROMPT + GREETING.length + 1);
  },

  async scripted_a_stream_gives_the_same() {
    const chunks = await collect(ask({ stream: true, stream_options: { include_usage: true } }));
    assert.equal(textOf(chunks), GREETING);
    assert.deepEqual(reasonsOf(chunks), ["stop"]);
    assert.deepEqual(chunks.at(-1).usage, (await ask()).usage);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.ok((await collect(ask({ stream: true }))).every((chunk) => chunk.choices.length && !("usage" in chunk)));
  },

  async scripted_the_stream_helper_puts_an_answer_together() {
    const stream = client.chat.completions.stream({ model: MODEL, messages: user("greet") });
    let text = "";
    stream.on("content", (delta) => { text += delta; });
    assert.equal(await stream.finalContent(), GREETING);
    assert.equal(text, GREETING);
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.role, "assistant");
    assert.equal(final.choices[0].finish_reason, "stop");
  },

  async scripted_the_whole_conversation_arrives() {
    const turns = [["system", "Be brief."], ["user", "Hé 😀"], ["assistant", "Yes?"], ["user", "repeat"]];
    const messages = turns.map(([role, content]) => ({ role, content }));
    assert.equal((await ask({ messages })).choices[0].message.content, repeated(...turns));
    assert.equal(textOf(await collect(ask({ messages, stream: true }))), repeated(...turns));
  },

  async scripted_stop_strings_and_limits_end_an_answer() {
    for (const [fields, text, reason] of [
      [{ stop: " Ann" }, "Hello there,", "stop"],
      [{ stop: ["xyz", "How"] }, "Hello there, Ann. ", "stop"],
      [{ max_tokens: 5 }, "Hello", "length"],
      [{ max_completion_tokens: 5 }, "Hello", "length"],
    ]) {
      const [choice] = (await ask(fields)).choices;
      assert.deepEqual([choice.message.content, choice.finish_reason], [text, reason]);
      const chunks = await collect(ask({ ...fields, stream: true }));
      assert.deepEqual([textOf(chunks), reasonsOf(chunks)], [text, [reason]]);
    }
  },

  async scripted_several_answers_to_one_prompt() {
    const { choices } = await ask({ n: 3 });
    assert.deepEqual(choices.map((choice) => [choice.index, choice.message.content]), [0, 1, 2].map((i) => [i, GREETING]));
    const chunks = await collect(ask({ n: 3, stream: true }));
    assert.deepEqual([0, 1, 2].map((index) => textOf(chunks, index)), [GREETING, GREETING, GREETING]);
  },

  async scripted_log_probabilities() {
    const fields = { logprobs: true, top_logprobs: 2 };
    const entries = (await ask(fields)).choices[0].logprobs.content;
    assert.equal(entries.map((entry) => entry.token).join(""), GREETING);
    assert.ok(entries.every((entry) => entry.top_logprobs.length === 2 && entry.logprob === -0.5));
    const chunks = await collect(ask({ ...fields, stream: true }));
    const told = choicesOf(chunks, 0).flatMap((choice) => choice.logprobs?.content ?? []);
    assert.deepEqual(told, entries);
  },

  async scripted_unicode_comes_through_whole_and_streamed() {
    const messages = user("unicode");
    assert.equal((await ask({ messages })).choices[0].message.content, UNICODE);
    const chunks = await collect(ask({ messages, stream: true }));
    assert.equal(textOf(chunks), UNICODE);
    assert.ok(choicesOf(chunks, 0).filter((choice) => choice.delta.content).length > 1);
  },

  async scripted_completions() {
    const fields = { prompt: ["Once", "Twice"], max_tokens: 20, n: 2 };
    const texts = (await complete(fields)).choices.map((choice) => choice.text);
    assert.equal(texts.length, 4);
    assert.ok(texts.every((text) => text.length === 20) && texts[0] === texts[1] && texts[1] !== texts[2]);
    const streamed = ["", "", "", ""];
    for (const chunk of await collect(complete({ ...fields, stream: true })))
      for (const choice of chunk.choices) streamed[choice.index] += choice.text;
    assert.deepEqual(streamed, texts);
    const cut = await complete({ max_tokens: 20, stop: texts[0].slice(4, 7) });
    assert.equal(cut.choices[0].text, texts[0].slice(0, 4));
    const [told] = (await complete({ max_tokens: 6, logprobs: 2 })).choices;
    assert.equal(told.logprobs.tokens.join(""), told.text);
  },

  async scripted_models() {
    const listed = [];
    for await (const model of client.models.list()) listed.push(model);
    assert.deepEqual(listed.map((model) => model.id), [MODEL]);
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  },

  async scripted_mistakes_become_the_clients_exceptions() {
    for (const stream of [false, true]) {
      const error = await raises(OpenAI.BadRequestError, () => ask({ temperature: 5, stream }));
      assert.deepEqual([error.status, error.param, error.code], [400, "temperature", "decimal_above_max_value"]);
      assert.equal(error.type, "invalid_request_error");
      assert.equal(error.requestID, error.headers.get("x-request-id"));
    }
    for (const call of [() => ask({ model: "other" }), () => client.models.retrieve("other")])
      assert.equal((await raises(OpenAI.NotFoundError, call)).code, "model_not_found");
  },

  async scripted_a_tool_is_called_and_its_result_answered() {
    const fields = { messages: user(CALL_OSLO), tools: [tool()] };
    let message;
    for (const tool_choice of [undefined, "auto", "required", NAMED]) {
      const [called] = (await ask({ ...fields, tool_choice })).choices;
      assert.deepEqual([called.finish_reason, called.message.content], ["tool_calls", null]);
      assert.deepEqual(callsOf(called.message), [["get_weather", { city: "Oslo" }]]);
      const chunks = await collect(ask({ ...fields, tool_choice, stream: true }));
      assert.deepEqual(callsIn(chunks), callsOf(called.message));
      assert.deepEqual([textOf(chunks), reasonsOf(chunks)], ["", ["tool_calls"]]);
      message = called.message;
    }
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "12 degrees" };
    const [final] = (await ask({ ...fields, messages: [...fields.messages, message, result] })).choices;
    assert.deepEqual([final.message.content, final.finish_reason], [told("12 degrees"), "stop"]);
    assert.ok(!("tool_calls" in final.message));
  },

  async scripted_several_calls_and_words_before_them() {
    const fields = { messages: user(CALL_TWICE), tools: [tool()] };
    const expected = [["get_weather", { city: "Oslo" }], ["get_weather", { city: "Bergen" }]];
    assert.deepEqual(callsOf((await ask(fields)).choices[0].message), expected);
    assert.deepEqual(callsIn(await collect(ask({ ...fields, stream: true }))), expected);
    const one = (await ask({ ...fields, parallel_tool_calls: false })).choices[0];
    assert.deepEqual([callsOf(one.message), one.finish_reason], [expected.slice(0, 1), "tool_calls"]);
    const look = { ...fields, messages: user(CALL_OSLO.replace("call", "look")) };
    const { message } = (await ask(look)).choices[0];
    assert.equal(message.content.trim(), LOOK);
    assert.equal(textOf(await collect(ask({ ...look, stream: true }))).trim(), LOOK);
    assert.deepEqual(callsOf(message), expected.slice(0, 1));
  },

  async scripted_tool_choice_binds_a_model_that_wants_something_else() {
    for (const text of ["greet", 'call get_time {"city": "Oslo"}']) {
      const fields = { messages: user(text), tools: [tool(OSLO, "get_time"), tool(OSLO)], tool_choice: NAMED };
      assert.deepEqual(callsOf((await ask(fields)).choices[0].message), [["get_weather", { city: "Oslo" }]]);
      assert.deepEqual(callsIn(await collect(ask({ ...fields, stream: true }))), [["get_weather", { city: "Oslo" }]]);
    }
    const none = await ask({ messages: user(CALL_OSLO), tools: [tool()], tool_choice: "none" });
    assert.ok(!("tool_calls" in none.choices[0].message));
    assert.equal((await ask({ tools: [tool()] })).choices[0].message.content, GREETING);
  },

  async scripted_the_stream_helper_puts_calls_together() {
    const stream = client.chat.completions.stream({ model: MODEL, messages: user(CALL_TWICE), tools: [tool()] });
    const done = [];
    stream.on("tool_calls.function.arguments.done", ({ index, name, arguments: text }) => done.push([index, name, text]));
    const final = await stream.finalChatCompletion();
    const expected = [["get_weather", { city: "Oslo" }], ["get_weather", { city: "Bergen" }]];
    assert.deepEqual(done.map(([index, name, text]) => [index, name, JSON.parse(text)]), [
      [0, ...expected[0]],
      [1, ...expected[1]],
    ]);
    assert.deepEqual(callsOf(final.choices[0].message), expected);
    assert.equal(final.choices[0].finish_reason, "tool_calls");
    assert.equal(final.choices[0].message.role, "assistant");
  },

  async scripted_the_helper_runs_tools_until_there_is_an_answer() {
    for (const [text, cities] of [
      [CALL_OSLO, ["Oslo"]],
      [CALL_TWICE, ["Oslo", "Bergen"]],
      [`${CALL_OSLO} then ${CALL_OSLO.replace("Oslo", "Bergen")}`, ["Oslo", "Bergen"]],
    ]) {
      for (const stream of [false, true]) {
        const { asked, tools } = runnableWeather();
        const runner = client.chat.completions.runTools({ model: MODEL, messages: user(text), tools, stream });
        assert.equal(await runner.finalContent(), told(...cities.map((city) => `12 degrees in ${city}`)));
        assert.deepEqual(asked, cities);
      }
    }
  },

  async scripted_answers_are_parsed() {
    const fields = { model: MODEL, messages: user(WRITE_ANN), response_format: jsonSchema(PERSON) };
    const [whole] = (await ask(fields)).choices;
    assert.deepEqual([JSON.parse(whole.message.content), whole.finish_reason], [ANN, "stop"]);
    const stream = client.chat.completions.stream(fields);
    assert.deepEqual(JSON.parse(await stream.finalContent()), ANN);
    const strict = { ...tool(PERSON, "person"), function: { ...tool(PERSON, "person").function, strict: true } };
    const messages = user(WRITE_ANN.replace("write", "call person"));
    const parsed = await client.chat.completions.parse({ model: MODEL, messages, tools: [strict] });
    assert.deepEqual(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, ANN);
    const free = await ask({ messages: user(WRITE_ANN), response_format: { type: "json_object" } });
    assert.deepEqual(JSON.parse(free.choices[0].message.content), ANN);
  },

  async scripted_a_response_format_binds_a_model_that_wants_something_else() {
    const fields = { response_format: jsonSchema(OSLO) };
    const text = (await ask(fields)).choices[0].message.content;
    assert.deepEqual(JSON.parse(text), { city: "Oslo" });
    assert.equal(textOf(await collect(ask({ ...fields, stream: true }))), text);
  },

  async scripted_functions_of_old() {
    const functions = [{ name: "get_weather", parameters: CITY }];
    for (const function_call of [undefined, { name: "get_weather" }]) {
      const fields = { messages: user(CALL_OSLO), functions, function_call };
      const [called] = (await ask(fields)).choices;
      assert.equal(called.finish_reason, "function_call");
      assert.deepEqual(JSON.parse(called.message.function_call.arguments), { city: "Oslo" });
      const result = { role: "function", name: "get_weather", content: "12 degrees" };
      const final = await ask({ functions, messages: [...fields.messages, called.message, result] });
      assert.equal(final.choices[0].message.content, told("12 degrees"));
      const chunks = await collect(ask({ ...fields, stream: true }));
      const deltas = choicesOf(chunks, 0).map((choice) => choice.delta.function_call).filter(Boolean);
      assert.deepEqual(deltas.map((delta) => delta.name).filter(Boolean), ["get_weather"]);
      assert.deepEqual(JSON.parse(deltas.map((delta) => delta.arguments).join("")), { city: "Oslo" });
      assert.deepEqual(reasonsOf(chunks), ["function_call"]);
    }
  },

  async scripted_mistakes_in_tools_and_schemas_are_named() {
    const wrong = { type: "object", properties: { city: { type: "town" } } };
    for (const [fields, param] of [
      [{ tools: [tool(wrong)], tool_choice: "required" }, "tools[0].function.parameters"],
      [{ response_format: jsonSchema(wrong) }, "response_format"],
      [{ tool_choice: "required" }, "tool_choice"],
    ]) {
      const error = await raises(OpenAI.BadRequestError, () => ask(fields));
      assert.equal(error.param, param);
    }
  },

  async scripted_the_request_id_and_headers_can_be_seen() {
    const { data, response, request_id } = await ask().withResponse();
    assert.ok(request_id);
    assert.equal(data._request_id, request_id);
    assert.equal(response.headers.get("x-request-id"), request_id);
    assert.equal(response.headers.get("content-type"), "application/json");
    const named = await ask({}, { headers: { "X-Request-Id": "mine-1" } });
    assert.equal(named._request_id, "mine-1");
  },

  async scripted_a_stream_that_is_left_gives_its_place_back() {
    let numChunks = 0;
    for await (const chunk of await ask({ messages: user("slow"), n: 16, stream: true })) {
      assert.equal(chunk.object, "chat.completion.chunk");
      if (++numChunks === 40) {
        assert.equal(await numOpen(), 16);
        break;
      }
    }
    assert.equal(numChunks, 40);
    await untilIdle();
    assert.equal((await ask()).choices[0].message.content, GREETING);
  },

  async scripted_a_request_that_is_aborted_gives_its_place_back() {
    for (const stream of [false, true]) {
      const controller = new AbortController();
      const call = ask({ messages: user("slow"), stream }, { signal: controller.signal });
      const error = stream ? null : raises(OpenAI.APIUserAbortError, () => call);
      if (stream) await call;
      await untilBusy();
      controller.abort();
      await error;
      await untilIdle();
    }
  },

  async scripted_sixteen_at_once() {
    const texts = await atOnce(async (index) => {
      const fields = { max_tokens: 4 + index };
      return index % 2 ? textOf(await collect(ask({ ...fields, stream: true }))) : (await ask(fields)).choices[0].message.content;
    });
    assert.deepEqual(texts, texts.map((_, index) => GREETING.slice(0, 4 + index)));
  },

  async thinking_a_thought_comes_before_answers_calls_and_objects() {
    const [{ message }] = (await ask()).choices;
    assert.deepEqual([message.reasoning_content, message.content], [THOUGHT, GREETING]);
    const chunks = await collect(ask({ stream: true }));
    assert.equal(textOf(chunks), GREETING);
    assert.equal(choicesOf(chunks, 0).map((choice) => choice.delta.reasoning_content ?? "").join(""), THOUGHT);
    const fields = { messages: user(CALL_OSLO), tools: [tool()] };
    for (const tool_choice of ["auto", "required", NAMED]) {
      const [called] = (await ask({ ...fields, tool_choice })).choices;
      assert.deepEqual([called.message.reasoning_content, called.message.content], [THOUGHT, null]);
      assert.deepEqual(callsOf(called.message), [["get_weather", { city: "Oslo" }]]);
      assert.deepEqual(callsIn(await collect(ask({ ...fields, tool_choice, stream: true }))), callsOf(called.message));
    }
    const written = await ask({ messages: user(WRITE_ANN), response_format: jsonSchema(PERSON) });
    assert.deepEqual(JSON.parse(written.choices[0].message.content), ANN);
  },

  async model_the_capital_of_france_whole_and_streamed() {
    const messages = [{ role: "system", content: "You are a helpful assistant." }, ...user(CAPITAL)];
    const whole = await ask({ messages, temperature: 0 });
    assert.match(whole.choices[0].message.content, /Paris/);
    const chunks = await collect(ask({ messages, temperature: 0, stream: true, stream_options: { include_usage: true } }));
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.deepEqual(reasonsOf(chunks), [whole.choices[0].finish_reason]);
    assert.deepEqual(chunks.at(-1).usage, whole.usage);
  },

  async model_calls_and_answers_fit_their_schemas() {
    const fields = { messages: user("How is the weather in Oslo?"), tools: [tool()], temperature: 0 };
    for (const tool_choice of [NAMED, "required"]) {
      const [called] = (await ask({ ...fields, tool_choice, parallel_tool_calls: false })).choices;
      assert.deepEqual([called.finish_reason, called.message.content], ["tool_calls", null]);
      const [[name, { city, ...others }]] = callsOf(called.message);
      assert.deepEqual([name, typeof city, others], ["get_weather", "string", {}]);
      const chunks = await collect(ask({ ...fields, tool_choice, parallel_tool_calls: false, stream: true }));
      assert.deepEqual(callsIn(chunks), [[name, { city }]]);
    }
    const messages = user("Ann is 31 years old. Who is it?");
    const stream = client.chat.completions.stream({
      model: MODEL, messages, response_format: jsonSchema(PERSON), temperature: 0,
    });
    const { name, age, ...others } = JSON.parse(await stream.finalContent());
    assert.deepEqual([typeof name, Number.isInteger(age), others], ["string", true, {}]);
  },

  async model_a_seed_repeats_an_answer() {
    const texts = [];
    for (const seed of [1, 1, 2]) {
      const answer = await ask({ messages: user("Write a poem."), seed, temperature: 1.2, max_tokens: 16 });
      texts.push(answer.choices[0].message.content);
    }
    assert.equal(texts[0], texts[1]);
    assert.notEqual(texts[0], texts[2]);
  },

  async model_completions_whole_and_streamed() {
    const fields = { prompt: "The sky is", temperature: 0, max_tokens: 12 };
    const whole = (await complete(fields)).choices[0].text;
    const chunks = await collect(complete({ ...fields, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole);
    assert.ok(whole);
  },
});
