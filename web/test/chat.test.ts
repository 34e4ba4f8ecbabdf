import assert from "node:assert/strict";
import { test } from "node:test";

import { messagesOf, toolList, withToolCalls } from "../src/api/chat.ts";
import type { AssistantNode, Node } from "../src/types.ts";

function answer(fields: Partial<AssistantNode>): AssistantNode {
  return {
    id: "b", role: "assistant", parent: "a", createdAt: 2, content: "", reasoning: "", toolCalls: [], state: "done", model: "m",
    finishReason: null, usage: null, timing: null, failure: null, isJson: false, ...fields,
  };
}

test("messages: the system prompt first, thoughts left out, calls with their results", () => {
  const path: Node[] = [
    { id: "a", role: "user", parent: null, createdAt: 1, content: "hi" },
    answer({ reasoning: "hm", toolCalls: [{ id: "call_1", name: "f", arguments: "{}" }] }),
    { id: "c", role: "tool", parent: "b", createdAt: 3, content: "4", toolCallId: "call_1", name: "f" },
    answer({ state: "failed" }),
  ];
  assert.deepEqual(messagesOf("Be brief.", path), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "hi" },
    { role: "assistant", content: "", tool_calls: [{ id: "call_1", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "call_1", content: "4" },
  ]);
});

test("pieces of tool calls are put together", () => {
  let calls = withToolCalls([], [{ index: 0, id: "call_1", function: { name: "f", arguments: '{"a"' } }]);
  calls = withToolCalls(calls, [{ index: 0, function: { arguments: ":1}" } }, { index: 1, id: "call_2", function: { name: "g" } }]);
  assert.deepEqual(calls, [
    { id: "call_1", name: "f", arguments: '{"a":1}' },
    { id: "call_2", name: "g", arguments: "" },
  ]);
});

test("tools may be written as functions alone", () => {
  const tool = { type: "function", function: { name: "f" } };
  assert.deepEqual(toolList('{"name": "f"}'), [tool]);
  assert.deepEqual(toolList(JSON.stringify([tool])), [tool]);
});
