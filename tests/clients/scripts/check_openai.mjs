// openai for Node.

import assert from "node:assert/strict";
import OpenAI from "openai";
import {
  API, CAPITAL, GREETING, MODEL, NUM_PROMPT, UNICODE,
  atOnce, main, numOpen, raises, repeated, untilBusy, untilIdle,
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

  async scripted_what_is_not_there_yet_is_refused_by_name() {
    const tools = [{ type: "function", function: { name: "now", parameters: { type: "object", properties: {} } } }];
    for (const fields of [{ tools }, { response_format: { type: "json_object" } }]) {
      const error = await raises(OpenAI.BadRequestError, () => ask(fields));
      assert.equal(error.code, "unsupported_parameter");
      assert.ok(error.param.startsWith(Object.keys(fields)[0]));
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

  async model_the_capital_of_france_whole_and_streamed() {
    const messages = [{ role: "system", content: "You are a helpful assistant." }, ...user(CAPITAL)];
    const whole = await ask({ messages, temperature: 0 });
    assert.match(whole.choices[0].message.content, /Paris/);
    const chunks = await collect(ask({ messages, temperature: 0, stream: true, stream_options: { include_usage: true } }));
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.deepEqual(reasonsOf(chunks), [whole.choices[0].finish_reason]);
    assert.deepEqual(chunks.at(-1).usage, whole.usage);
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
