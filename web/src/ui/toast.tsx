// Short words at the foot of the page that go by themselves.
import { signal } from "@preact/signals";
import type { JSX } from "preact";

interface Toast {
  text: string;
  action?: { label: string; onChoose: () => void };
}

const shown = signal<Toast | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;

export function toast(text: string, action?: Toast["action"]): void {
  shown.value = action ? { text, action } : { text };
  clearTimeout(timer);
  timer = setTimeout(() => (shown.value = null), action ? 8000 : 4000);
}

export function Toasts(): JSX.Element {
  const one = shown.value;
  return (
    <div class="toasts" role="status" aria-live="polite">
      {one && (
        <div class="toast">
          <span>{one.text}</span>
          {one.action && (
            <button
              type="button"
              onClick={() => {
                shown.value = null;
                one.action?.onChoose();
              }}
            >
              {one.action.label}
            </button>
          )}
        </div>
      )}
    </div>
  );
}
