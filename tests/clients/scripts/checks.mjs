// What the checks of the clients for Node share: checks.py once more, where there is more to read.

import assert from "node:assert/strict";

export const URL = process.env.ANLLM_URL;
export const API = `${URL}/v1`;
export const MODEL = process.env.ANLLM_MODEL;
export const CAPITAL = "What is the capital of France?";

// What the scripted server answers; see clients/scripted.py.
export const GREETING = "Hello there, Ann. How are you?";
export const UNICODE = "日本語 😀 👩‍👩‍👧 naïve\u2028é 한국어 \u{1f1e9}\u{1f1ea}.";
export const NUM_PROMPT = '<user>greet""<assistant>'.length;
export const LOOK = "Let me look.";
export const THOUGHT = "What might Ann want?"; // of the server whose model thinks
export const CALL_OSLO = 'call get_weather {"city": "Oslo"}';
export const CALL_TWICE = 'call get_weather {"city": "Oslo"} get_weather {"city": "Bergen"}';
export const WRITE_ANN = 'write {"name": "Ann", "age": 31}';

export const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const OSLO = { ...CITY, properties: { city: { enum: ["Oslo"] } } }; // what any model has to say
export const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

const PATIENCE_MS = 10_000;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The answer to a conversation that ends with "repeat". */
export const repeated = (...messages) => messages.map(([role, text]) => `[${role}]${text}""`).join("");

/** The answer once the tools have given these results. */
export const told = (...results) => `The tools said: ${results.join(", ")}.`;

/** Answers that the scripted server is working on. */
export async function numOpen() {
  const response = await fetch(`${URL}/num-open`);
  assert.equal(response.status, 200);
  return Number(await response.text());
}

export async function until(condition, what) {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(performance.now() < deadline, what);
    await sleep(10);
  }
}

export const untilBusy = () => until(async () => (await numOpen()) > 0, "the server never began");
export const untilIdle = () =>
  until(async () => (await numOpen()) === 0, "the server goes on with an answer that nobody reads");

/** The error; one of another kind goes on as it is. */
export async function raises(kind, call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new assert.AssertionError({ message: `no ${kind.name}` });
}

export const atOnce = (call) => Promise.all(Array.from({ length: 16 }, (_, index) => call(index)));

/** Runs those checks whose names begin with the kind that the command line asks for. */
export async function main(all) {
  const kind = process.argv[2];
  const checks = Object.entries(all).filter(([name]) => name.startsWith(`${kind}_`));
  let numFailed = 0;
  for (const [name, check] of checks) {
    const begun = performance.now();
    try {
      await check();
      console.log(`passed ${name} ${((performance.now() - begun) / 1000).toFixed(2)} s`);
    } catch (error) {
      numFailed += 1;
      console.log(`FAILED ${name}`, error);
    }
  }
  console.log(`${kind}: ${checks.length} checks, ${numFailed} failed`);
  process.exit(checks.length && !numFailed ? 0 : 1);
}
