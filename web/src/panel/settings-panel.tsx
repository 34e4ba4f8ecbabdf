// The settings of the shown chat. What is left empty is not sent: the model's own defaults hold.
import type { ComponentChildren, JSX } from "preact";

import { changeSettings, isPlain, settings } from "../state/conversations.ts";
import { defaults } from "../state/preferences.ts";
import { faultOfSchema, faultOfTools, parseJson } from "../state/schema.ts";
import { EFFORTS, EMPTY_SETTINGS, type Effort, type Sampling, type Settings } from "../types.ts";
import { Button, IconButton } from "../ui/button.tsx";
import { Icon } from "../ui/icons.tsx";
import { toast } from "../ui/toast.tsx";
import { NumberField } from "./number-field.tsx";
import { isPanelOpen } from "./panel-state.ts";

interface Field {
  name: keyof Sampling;
  label: string;
  help: string;
  min: number;
  max?: number;
  step: number;
  neutral?: number;
  placeholder?: string;
}

const MAIN: Field[] = [
  { name: "temperature", label: "Temperature", help: "0 always takes the likeliest token; higher is more varied", min: 0, max: 2, step: 0.05, neutral: 1 },
  { name: "maxTokens", label: "Max tokens", help: "The answer ends after so many tokens", min: 1, step: 1, placeholder: "none" },
];

const MORE: Field[] = [
  { name: "topP", label: "Top p", help: "Draws from the likeliest tokens that make up this share", min: 0, max: 1, step: 0.01, neutral: 1 },
  { name: "topK", label: "Top k", help: "Draws from so many of the likeliest tokens", min: 0, step: 1 },
  { name: "minP", label: "Min p", help: "Leaves out tokens less likely than this share of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "seed", label: "Seed", help: "The same seed and settings give the same answer", min: 0, step: 1, placeholder: "random" },
  { name: "presencePenalty", label: "Presence penalty", help: "Above 0: words that were used come less often", min: -2, max: 2, step: 0.1 },
  { name: "frequencyPenalty", label: "Frequency penalty", help: "Above 0: the more often used, the less often again", min: -2, max: 2, step: 0.1 },
  { name: "repetitionPenalty", label: "Repetition penalty", help: "Above 1: less of what is in the prompt or the answer", min: 0.1, max: 2, step: 0.05, neutral: 1 },
];

export function SettingsPanel(): JSX.Element {
  const given = settings.value;
  return (
    <aside class="panel" aria-label="Chat settings" id="panel">
      <header class="panel-head">
        <h2>Chat settings</h2>
        <IconButton icon="close" label="Close the settings" onClick={() => (isPanelOpen.value = false)} />
      </header>
      <div class="panel-body">
        <label class="label">
          System prompt
          <textarea
            rows={4}
            value={given.system}
            placeholder="What the model should be, know, or keep to"
            onInput={(event) => changeSettings({ system: event.currentTarget.value })}
          />
        </label>
        <Fields fields={MAIN} sampling={given.sampling} />
        <Section title="More sampling" isUsed={MORE.some(({ name }) => given.sampling[name] !== null) || given.stop.length > 0}>
          <Fields fields={MORE} sampling={given.sampling} />
          <label class="label">
            Stop at
            <textarea
              rows={2}
              value={given.stop.join("\n")}
              placeholder="One text a line, at most four"
              onInput={(event) =>
                changeSettings({ stop: event.currentTarget.value.split("\n").filter((line) => line !== "") })
              }
            />
          </label>
        </Section>
        <Section title="Reasoning" isUsed={given.effort !== null}>
          <label class="label">
            Effort
            <select
              value={given.effort ?? ""}
              onChange={(event) => changeSettings({ effort: (event.currentTarget.value || null) as Effort | null })}
            >
              <option value="">The model’s own</option>
              {EFFORTS.map((effort) => (
                <option key={effort} value={effort}>
                  {effort}
                </option>
              ))}
            </select>
            <small>For models that think before they answer; others ignore it.</small>
          </label>
        </Section>
        <Section title="Answer format" isUsed={given.format !== "text"}>
          <Format given={given} />
        </Section>
        <Section title="Tools" isUsed={given.tools.trim() !== ""}>
          <Tools given={given} />
        </Section>
      </div>
      <footer class="panel-foot">
        <Button
          onClick={() => {
            defaults.value = given;
            toast("New chats begin with these settings");
          }}
        >
          Use for new chats
        </Button>
        <Button disabled={isPlain(given)} onClick={() => changeSettings(EMPTY_SETTINGS)}>
          Reset
        </Button>
      </footer>
    </aside>
  );
}

function Section({ title, isUsed, children }: { title: string; isUsed: boolean; children: ComponentChildren }): JSX.Element {
  return (
    <details class="section">
      <summary>
        {title}
        {isUsed && <span class="used">on</span>}
        <Icon name="chevron" size={16} />
      </summary>
      <div class="section-body">{children}</div>
    </details>
  );
}

function Fields({ fields, sampling }: { fields: Field[]; sampling: Sampling }): JSX.Element {
  return (
    <>
      {fields.map(({ name, ...field }) => (
        <NumberField
          key={name}
          {...field}
          value={sampling[name]}
          onChange={(value) => changeSettings({ sampling: { ...settings.peek().sampling, [name]: value } })}
        />
      ))}
    </>
  );
}

const FORMATS: [Settings["format"], string][] = [
  ["text", "Text"],
  ["json_object", "JSON"],
  ["json_schema", "JSON schema"],
];

const SCHEMA_EXAMPLE = `{
  "type": "object",
  "properties": {
    "name": { "type": "string" },
    "age": { "type": "integer" }
  },
  "required": ["name", "age"],
  "additionalProperties": false
}`;

function Format({ given }: { given: Settings }): JSX.Element {
  const fault = given.format === "json_schema" ? faultOfSchema(given.schema) : null;
  return (
    <>
      <div class="segments" role="radiogroup" aria-label="Format">
        {FORMATS.map(([format, label]) => (
          <label key={format}>
            <input
              type="radio"
              name="format"
              checked={given.format === format}
              onChange={() => changeSettings({ format })}
            />
            <span>{label}</span>
          </label>
        ))}
      </div>
      {given.format === "json_schema" && (
        <JsonField
          label="Schema"
          value={given.schema}
          fault={fault}
          good="The schema is well-formed; every answer will fit it."
          example={SCHEMA_EXAMPLE}
          onChange={(schema) => changeSettings({ schema })}
        />
      )}
    </>
  );
}

const TOOLS_EXAMPLE = `[
  {
    "name": "get_weather",
    "description": "The weather in a city now",
    "parameters": {
      "type": "object",
      "properties": { "city": { "type": "string" } },
      "required": ["city"]
    }
  }
]`;

function Tools({ given }: { given: Settings }): JSX.Element {
  return (
    <>
      <JsonField
        label="Tools as JSON"
        value={given.tools}
        fault={faultOfTools(given.tools)}
        good={given.tools.trim() ? "Calls are shown in the chat; you type in what they give." : ""}
        example={TOOLS_EXAMPLE}
        onChange={(tools) => changeSettings({ tools })}
      />
      <label class="label">
        Use of tools
        <select
          value={given.toolChoice}
          onChange={(event) => changeSettings({ toolChoice: event.currentTarget.value as Settings["toolChoice"] })}
        >
          <option value="auto">The model decides</option>
          <option value="required">It must call one</option>
          <option value="none">It must not call any</option>
        </select>
      </label>
    </>
  );
}

interface JsonFieldProps {
  label: string;
  value: string;
  fault: string | null;
  good: string;
  example: string;
  onChange: (value: string) => void;
}

function JsonField({ label, value, fault, good, example, onChange }: JsonFieldProps): JSX.Element {
  const id = `json-${label.replaceAll(" ", "-")}`;
  const tidy = () => {
    const parsed = parseJson(value);
    if ("value" in parsed) onChange(JSON.stringify(parsed.value, null, 2));
  };
  return (
    <div class="json-field">
      <label class="label">
        {label}
        <textarea
          class="mono"
          rows={9}
          spellcheck={false}
          value={value}
          aria-invalid={fault !== null}
          aria-describedby={id}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      </label>
      <p id={id} class={fault ? "fault" : "good"} role="status">
        {fault ?? good}
      </p>
      <div class="row">
        {value.trim() === "" ? (
          <Button onClick={() => onChange(example)}>Fill in an example</Button>
        ) : (
          <>
            <Button onClick={tidy}>Tidy up</Button>
            <Button onClick={() => onChange("")}>Clear</Button>
          </>
        )}
      </div>
    </div>
  );
}
