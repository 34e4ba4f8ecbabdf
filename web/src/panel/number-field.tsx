import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

interface Props {
  label: string;
  help: string;
  value: number | null;
  min: number;
  max?: number;
  step: number;
  /** Where the slider stands when nothing is set. */
  neutral?: number;
  placeholder?: string;
  onChange: (value: number | null) => void;
}

/** A number, or nothing. With an upper bound there is a slider too. */
export function NumberField({ label, help, value, min, max, step, neutral = 0, placeholder = "default", onChange }: Props): JSX.Element {
  const [text, setText] = useState(value === null ? "" : String(value));
  useEffect(() => {
    if (value !== numberFrom(text)) setText(value === null ? "" : String(value));
  }, [value]);
  const given = numberFrom(text);
  const isWrong =
    text.trim() !== "" && (given === null || given < min || (max !== undefined && given > max) || (step === 1 && !Number.isInteger(given)));
  const id = `field-${label.replaceAll(" ", "-").toLowerCase()}`;
  const position = value ?? neutral; // of the slider
  const allowed = max === undefined ? `${min} or more` : `${min} to ${max}`;
  return (
    <div class="number-field">
      <div class="number-head">
        <label for={id}>{label}</label>
        <input
          id={id}
          type="text"
          inputMode="decimal"
          autoComplete="off"
          placeholder={placeholder}
          value={text}
          aria-invalid={isWrong}
          aria-describedby={`${id}-help`}
          onInput={(event) => {
            const typed = event.currentTarget.value;
            setText(typed);
            const number = numberFrom(typed);
            const isAllowed = number !== null && number >= min && (max === undefined || number <= max) && (step !== 1 || Number.isInteger(number));
            if (typed.trim() === "" || isAllowed) onChange(number);
          }}
          onBlur={() => setText(value === null ? "" : String(value))}
        />
      </div>
      {max !== undefined && (
        <input
          type="range"
          aria-label={`${label}, slider`}
          aria-valuetext={value === null ? placeholder : String(value)}
          class={value === null ? "unset" : ""}
          style={{ "--share": `${((position - min) / (max - min)) * 100}%` }}
          min={min}
          max={max}
          step={step}
          value={position}
          onInput={(event) => onChange(Number(event.currentTarget.value))}
        />
      )}
      <small id={`${id}-help`} class={isWrong ? "fault" : "muted"}>
        {isWrong ? `${step === 1 ? "A whole number, " : ""}${allowed}` : help}
      </small>
    </div>
  );
}

function numberFrom(text: string): number | null {
  const number = Number(text.trim().replace(",", "."));
  return text.trim() !== "" && Number.isFinite(number) ? number : null;
}
