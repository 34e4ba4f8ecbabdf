import assert from "node:assert/strict";
import { test } from "node:test";

import { childrenOf, pathTo, shownPath, titleFrom, withNode, withSibling } from "../src/state/tree.ts";
import { type Conversation, EMPTY_SETTINGS, type UserNode } from "../src/types.ts";

function conversation(): Conversation {
  return {
    id: "c", title: "t", isNamed: false, createdAt: 0, updatedAt: 0, model: null, settings: EMPTY_SETTINGS, nodes: {}, shown: {},
  };
}

function node(id: string, parent: string | null, createdAt: number): UserNode {
  return { id, role: "user", parent, createdAt, content: id };
}

const ids = (nodes: { id: string }[]) => nodes.map(({ id }) => id).join("");

test("what was added last is shown, and a sibling on demand", () => {
  let one = conversation();
  for (const [id, parent, at] of [["a", null, 1], ["b", "a", 2], ["c", "a", 3], ["d", "c", 4]] as const)
    one = withNode(one, node(id, parent, at));
  assert.equal(ids(shownPath(one)), "acd");
  one = withSibling(one, "c", -1);
  assert.equal(ids(shownPath(one)), "ab");
  assert.equal(ids(shownPath(withSibling(one, "b", 1))), "acd");
  assert.equal(withSibling(one, "b", -1), one);
  assert.equal(ids(childrenOf(one, "a")), "bc");
  assert.equal(ids(pathTo(one, "d")), "acd");
  assert.equal(one.updatedAt, 4);
});

test("a node that is shown and gone leaves the latest", () => {
  const one = { ...withNode(conversation(), node("a", null, 1)), shown: { "": "gone" } };
  assert.equal(ids(shownPath(one)), "a");
});

test("titles are the first line, cut at a word", () => {
  assert.equal(titleFrom("# Hello\nworld"), "Hello");
  assert.equal(titleFrom("   \n "), "New chat");
  assert.equal(titleFrom("word ".repeat(20)), `${"word ".repeat(12).trim()}…`);
  assert.equal(titleFrom("x".repeat(100)).length, 61);
});
