import assert from "node:assert/strict";
import { test } from "node:test";

import { faultOfSchema, faultOfTools } from "../src/state/schema.ts";

const GOOD = [
  "{}",
  '{"type": ["string", "null"], "minLength": 1, "pattern": "^a$"}',
  '{"$defs": {"a/b": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}, "additionalProperties": false}',
  '{"$ref": "#"}',
  '{"anyOf": [{"const": 1}, true], "items": {"enum": [null]}}',
];

const BAD: [string, RegExp][] = [
  ["", /Write a JSON schema/],
  ["[]", /must be an object/],
  ['{"type": "int"}', /\/type is "int"; allowed: string, number/],
  ['{"properties": []}', /\/properties must be an object/],
  ['{"properties": {"a": {"items": 3}}}', /\/properties\/a\/items must be a schema/],
  ['{"required": "a"}', /\/required must be an array/],
  ['{"anyOf": []}', /\/anyOf must be an array/],
  ['{"pattern": "("}', /\/pattern is no regular expression/],
  ['{"$ref": "#/$defs/x"}', /\/\$ref leads nowhere/],
  ['{"$ref": "https://example.org/s.json"}', /\/\$ref leads nowhere/],
  ['{"maxItems": -1}', /\/maxItems must be a whole number/],
  ['{"minimum": "1"}', /\/minimum must be a number/],
  ['{"enum": []}', /\/enum must be/],
];

test("good schemas pass", () => {
  for (const text of GOOD) assert.equal(faultOfSchema(text), null, text);
});

test("faults are told with their place", () => {
  for (const [text, fault] of BAD) assert.match(faultOfSchema(text) ?? "no fault", fault, text);
});

test("tools need names of their own, and schemas", () => {
  assert.equal(faultOfTools("  "), null);
  assert.equal(faultOfTools('{"name": "a"}'), null);
  assert.equal(faultOfTools('[{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]'), null);
  assert.match(faultOfTools('[{"name": "a b"}]') ?? "", /Tool 1 needs a name/);
  assert.match(faultOfTools('[{"name": "a"}, {"name": "a"}]') ?? "", /Two tools are named a/);
  assert.match(faultOfTools('[{"name": "a", "parameters": {"type": "x"}}]') ?? "", /^a: \/type/);
  assert.match(faultOfTools("[3]") ?? "", /Tool 1 must be an object/);
  assert.match(faultOfTools("[") ?? "", /Not JSON/);
});
