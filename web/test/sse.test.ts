import assert from "node:assert/strict";
import { test } from "node:test";

import { eventsOf } from "../src/api/sse.ts";

async function read(chunks: Uint8Array[]): Promise<string[]> {
  const events: string[] = [];
  for await (const event of eventsOf(new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  }))) events.push(event);
  return events;
}

const TEXT = 'data: {"a":"é😀"}\n\n: keep-alive\n\ndata: two\r\n\r\nevent: x\ndata: three\ndata: lines\n\ndata: [DONE]\n\n';
const EVENTS = ['{"a":"é😀"}', "two", "three\nlines", "[DONE]"];

test("events come whole, wherever the bytes are cut", async () => {
  const bytes = new TextEncoder().encode(TEXT);
  for (let size = 1; size <= bytes.length; size++) {
    const chunks = [];
    for (let at = 0; at < bytes.length; at += size) chunks.push(bytes.slice(at, at + size));
    assert.deepEqual(await read(chunks), EVENTS, `in pieces of ${size}`);
  }
});

test("an event without its blank line is passed on at the end", async () => {
  assert.deepEqual(await read([new TextEncoder().encode("data: last")]), ["last"]);
});
