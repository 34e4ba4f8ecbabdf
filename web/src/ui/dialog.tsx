// The browser's own modal dialog: it keeps the focus inside, closes with Escape and gives the focus back.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { IconButton } from "./button.tsx";

interface DialogProps {
  title: string;
  /** "bare" has no head of its own; the title is there for screen readers. */
  kind?: "normal" | "bare";
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, kind = "normal", onClose, children }: DialogProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      class={`dialog ${kind}`}
      aria-labelledby={id}
      onClose={onClose}
      onCancel={onClose}
      onMouseDown={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div class="dialog-body">
        {kind === "normal" ? (
          <header class="dialog-head">
            <h2 id={id}>{title}</h2>
            <IconButton icon="close" label="Close" onClick={onClose} />
          </header>
        ) : (
          <h2 id={id} class="hidden">
            {title}
          </h2>
        )}
        {children}
      </div>
    </dialog>
  );
}
