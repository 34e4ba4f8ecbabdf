// Where messages are written.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

import { isPanelOpen } from "../panel/panel-state.ts";
import { current, settings } from "../state/conversations.ts";
import { isAnswering, send, stop } from "../state/generate.ts";
import { currentId } from "../state/route.ts";
import { faultOfSchema, faultOfTools } from "../state/schema.ts";
import type { Settings } from "../types.ts";
import { Icon, type IconName } from "../ui/icons.tsx";

/** What was begun in each conversation and not sent. */
const drafts = signal<Record<string, string>>({});
export const composerFocus = signal(0);

export function setDraft(text: string): void {
  drafts.value = { ...drafts.peek(), [currentId.peek() ?? ""]: text };
}

export function Composer(): JSX.Element {
  const area = useRef<HTMLTextAreaElement>(null);
  const id = currentId.value ?? "";
  const text = drafts.value[id] ?? "";
  const isBusy = isAnswering(current.value?.id);
  const fault = faultOf(settings.value);
  const canSend = text.trim() !== "" && !isBusy && fault === null;

  useLayoutEffect(() => {
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, window.innerHeight * 0.4)}px`;
  }, [text]);
  useEffect(() => {
    // where there is a keyboard: a phone's would cover the page
    if (window.matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [id, composerFocus.value]);

  const submit = () => {
    if (!canSend) return;
    setDraft("");
    send(text.trim());
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {fault && (
        <button type="button" class="composer-fault" onClick={() => (isPanelOpen.value = true)}>
          <Icon name="alert" size={16} /> {fault}
        </button>
      )}
      <div class="composer-box">
        <textarea
          ref={area}
          dir="auto"
          rows={1}
          aria-label="Message"
          placeholder={current.value ? "Reply" : "Ask anything"}
          value={text}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
        <div class="composer-foot">
          <Modes settings={settings.value} />
          {isBusy ? (
            <button
              type="button"
              class="send stop"
              aria-label="Stop"
              title="Stop (Esc)"
              onClick={() => stop(current.peek()?.id ?? "")}
            >
              <span aria-hidden="true" />
            </button>
          ) : (
            <button type="submit" class="send" aria-label="Send" title="Send (Enter)" disabled={!canSend}>
              <Icon name="up" size={20} />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

function faultOf({ format, schema, tools }: Settings): string | null {
  const inTools = faultOfTools(tools);
  if (inTools) return `Tools: ${inTools}`;
  const inSchema = format === "json_schema" ? faultOfSchema(schema) : null;
  return inSchema ? `JSON schema: ${inSchema}` : null;
}

/** What differs from a plain chat, so that it isn't forgotten. */
function Modes({ settings: given }: { settings: Settings }): JSX.Element {
  const modes: [IconName, string][] = [];
  if (given.system.trim()) modes.push(["chat", "System prompt"]);
  if (given.format !== "text") modes.push(["braces", given.format === "json_schema" ? "JSON schema" : "JSON"]);
  if (given.tools.trim()) modes.push(["tool", "Tools"]);
  if (given.effort) modes.push(["thought", `Effort: ${given.effort}`]);
  const isSampled = Object.values(given.sampling).some((value) => value !== null) || given.stop.length > 0;
  if (isSampled) modes.push(["sliders", "Sampling"]);
  return (
    <div class="modes">
      {modes.length === 0 && (
        <span class="composer-hint" aria-hidden="true">
          <kbd>Shift</kbd> <kbd>Enter</kbd> for a new line
        </span>
      )}
      {modes.map(([icon, label]) => (
        <button type="button" class="mode" key={label} onClick={() => (isPanelOpen.value = true)}>
          <Icon name={icon} size={15} />
          <span>{label}</span>
        </button>
      ))}
    </div>
  );
}
