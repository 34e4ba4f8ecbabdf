// Says what is wrong with a JSON schema or a list of tools before the server has to. Not every fault is found here: the
// server has the last word.

const TYPES = new Set(["string", "number", "integer", "boolean", "object", "array", "null"]);
const SCHEMA_MAPS = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const SCHEMA_LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const SCHEMAS = ["items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"];
const NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

type Json = Record<string, unknown>;

/** null if nothing is wrong. */
export function faultOfSchema(text: string): string | null {
  if (!text.trim()) return "Write a JSON schema, or choose another format.";
  const parsed = parseJson(text);
  if ("fault" in parsed) return parsed.fault;
  if (!isObject(parsed.value)) return "The schema must be an object.";
  return faultIn(parsed.value, "", parsed.value);
}

/** null if nothing is wrong; nothing at all is no fault. */
export function faultOfTools(text: string): string | null {
  if (!text.trim()) return null;
  const parsed = parseJson(text);
  if ("fault" in parsed) return parsed.fault;
  const tools: unknown[] = Array.isArray(parsed.value) ? parsed.value : [parsed.value];
  const names = new Set<string>();
  for (const [i, tool] of tools.entries()) {
    const definition = isObject(tool) && "function" in tool ? tool.function : tool;
    if (!isObject(definition)) return `Tool ${i + 1} must be an object.`;
    const { name, parameters } = definition;
    if (typeof name !== "string" || !/^[\w-]{1,64}$/.test(name))
      return `Tool ${i + 1} needs a name of letters, digits, _ and -.`;
    if (names.has(name)) return `Two tools are named ${name}.`;
    names.add(name);
    if (parameters === undefined) continue;
    if (!isObject(parameters)) return `The parameters of ${name} must be a JSON schema.`;
    const fault = faultIn(parameters, "", parameters);
    if (fault) return `${name}: ${fault}`;
  }
  return null;
}

export function parseJson(text: string): { value: unknown } | { fault: string } {
  try {
    return { value: JSON.parse(text) as unknown };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const position = /position (\d+)/.exec(message)?.[1];
    if (position === undefined) return { fault: `Not JSON: ${message}` };
    const before = text.slice(0, Number(position)).split("\n");
    const column = (before.at(-1)?.length ?? 0) + 1;
    const what = message.replace(/ in JSON at position.*/, "").replace(/ \(line.*/, "");
    return { fault: `Not JSON at line ${before.length}, column ${column}: ${what}.` };
  }
}

function faultIn(schema: Json, path: string, root: Json): string | null {
  const at = (key: string) => `${path}/${key}`;
  const { type, required, pattern, $ref, enum: values } = schema;
  for (const name of type === undefined ? [] : Array.isArray(type) ? type : [type])
    if (typeof name !== "string" || !TYPES.has(name))
      return `${at("type")} is ${JSON.stringify(name)}; allowed: ${[...TYPES].join(", ")}.`;
  if (required !== undefined && !(Array.isArray(required) && required.every((name) => typeof name === "string")))
    return `${at("required")} must be an array of names.`;
  if (values !== undefined && !(Array.isArray(values) && values.length > 0))
    return `${at("enum")} must be an array with a value.`;
  if (pattern !== undefined && !isPattern(pattern)) return `${at("pattern")} is no regular expression.`;
  if ($ref !== undefined && !resolves($ref, root)) return `${at("$ref")} leads nowhere within this schema.`;
  for (const key of NUMBERS)
    if (key in schema && typeof schema[key] !== "number") return `${at(key)} must be a number.`;
  for (const key of COUNTS)
    if (key in schema && !(Number.isInteger(schema[key]) && Number(schema[key]) >= 0))
      return `${at(key)} must be a whole number from 0 on.`;
  return faultBelow(schema, path, root);
}

function faultBelow(schema: Json, path: string, root: Json): string | null {
  const inner: [string, unknown][] = [];
  for (const key of SCHEMA_MAPS) {
    const value = schema[key];
    if (value === undefined) continue;
    if (!isObject(value)) return `${path}/${key} must be an object of schemas.`;
    for (const [name, part] of Object.entries(value)) inner.push([`${path}/${key}/${name}`, part]);
  }
  for (const key of SCHEMA_LISTS) {
    const value = schema[key];
    if (value === undefined) continue;
    if (!Array.isArray(value) || value.length === 0) return `${path}/${key} must be an array of schemas.`;
    for (const [i, part] of value.entries()) inner.push([`${path}/${key}/${i}`, part]);
  }
  for (const key of SCHEMAS) if (schema[key] !== undefined) inner.push([`${path}/${key}`, schema[key]]);
  for (const [where, part] of inner) {
    if (typeof part === "boolean") continue;
    if (!isObject(part)) return `${where} must be a schema: an object, true or false.`;
    const fault = faultIn(part, where, root);
    if (fault) return fault;
  }
  return null;
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isPattern(pattern: unknown): boolean {
  if (typeof pattern !== "string") return false;
  try {
    new RegExp(pattern, "u");
    return true;
  } catch {
    return false;
  }
}

function resolves(reference: unknown, root: Json): boolean {
  if (typeof reference !== "string") return false;
  if (!reference.startsWith("#")) return false;
  let found: unknown = root;
  for (const part of reference.slice(1).split("/").filter(Boolean))
    found = isObject(found) ? found[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")] : undefined;
  return found !== undefined;
}
