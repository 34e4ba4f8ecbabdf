import assert from "node:assert/strict";
import { test } from "node:test";

import { search } from "../src/dialogs/find.ts";
import { exported, imported } from "../src/state/transfer.ts";
import { type AssistantNode, type Conversation, EMPTY_SETTINGS } from "../src/types.ts";

const ANSWER: AssistantNode = {
  id: "b", role: "assistant", parent: "a", createdAt: 2, content: "Birds have zygodactyl feet.", reasoning: "Hm.",
  toolCalls: [{ id: "call_1", name: "f", arguments: "{}" }], state: "done", model: "m", finishReason: "stop",
  usage: { promptTokens: 1, completionTokens: 2, cachedTokens: 0, reasoningTokens: 1 },
  timing: { ttftMs: 10, totalMs: 30, decodeMs: 20 },
  failure: { status: 429, message: "Busy.", code: null, param: null, retryAfterS: 1 }, isJson: false,
};

const ONE: Conversation = {
  id: "c", title: "About birds", isNamed: true, createdAt: 1, updatedAt: 2, model: "m",
  settings: { ...EMPTY_SETTINGS, system: "Be brief.", stop: ["END"], effort: "low", format: "json_schema", schema: "{}" },
  nodes: {
    a: { id: "a", role: "user", parent: null, createdAt: 1, content: "Which birds?" },
    b: ANSWER,
    d: { id: "d", role: "tool", parent: "b", createdAt: 3, content: "x", toolCallId: "call_1", name: "f" },
  },
  shown: { "": "a" },
};

test("what is exported is imported as it was", () => {
  assert.deepEqual(imported(exported([ONE])), [ONE]);
});

test("files that are none are refused in words", () => {
  const withNodes = (nodes: unknown) => exported([{ ...ONE, nodes } as Conversation]);
  for (const [text, fault] of [
    ["x", /not JSON/],
    ["[]", /not exported from here/],
    [exported([ONE]).replace('"version": 1', '"version": 2'), /version 2/],
    ['{"format": "anllm-conversations", "version": 1}', /no conversations/],
    [withNodes({ a: { id: "a", role: "user", parent: "x" } }), /answers to none/],
    [withNodes({ a: { id: "a", role: "user", parent: "b" }, b: { id: "b", role: "user", parent: "a" } }), /answers to none/],
  ] as const)
    assert.throws(() => imported(text), fault);
});

test("fields of other types become what a chat can show", () => {
  const file = { format: "anllm-conversations", version: 1, conversations: [{ id: "c", title: 3, nodes: { a: { id: "a", role: "assistant", content: {} } }, settings: { sampling: { temperature: "hot" } } }] };
  const [one] = imported(JSON.stringify(file));
  assert.equal(one?.title, "New chat");
  assert.equal(one.nodes.a?.content, "");
  assert.equal(one.settings.sampling.temperature, null);
});

test("search finds all words, in titles and messages", () => {
  assert.deepEqual(search([ONE], "BIRDS feet", 9), [
    { id: "c", title: "About birds", before: "Birds have zygodactyl ", match: "feet", after: "." },
  ]);
  assert.equal(search([ONE], "birds whales", 9).length, 0);
  assert.equal(search([ONE, ONE], "birds", 1).length, 1);
});
