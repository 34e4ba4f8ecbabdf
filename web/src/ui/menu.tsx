// A button that opens a menu: arrow keys move, Escape and a click elsewhere close it.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Icon, type IconName } from "./icons.tsx";

export interface MenuItem {
  label: string;
  hint?: string;
  icon?: IconName;
  isChosen?: boolean;
  isDanger?: boolean;
  onChoose: () => void;
}

interface MenuProps {
  label: string;
  buttonClass: string;
  items: MenuItem[];
  /** Which edge of the button the menu keeps to. */
  align?: "start" | "end";
  children: ComponentChildren;
}

export function Menu({ label, buttonClass, items, align = "start", children }: MenuProps): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);

  useEffect(() => {
    if (!isOpen) return undefined;
    box.current?.querySelector<HTMLElement>("[aria-checked=true], [role^=menuitem]")?.focus();
    const onDown = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("mousedown", onDown);
    return () => document.removeEventListener("mousedown", onDown);
  }, [isOpen]);

  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape" || event.key === "Tab") {
      if (event.key === "Escape") event.preventDefault();
      event.stopPropagation();
      close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const all = [...(box.current?.querySelectorAll<HTMLElement>("[role^=menuitem]") ?? [])];
    const index = all.indexOf(document.activeElement as HTMLElement);
    all[(index + step + all.length) % all.length]?.focus();
  };

  return (
    <div class="menu-box" ref={box} onKeyDown={onKeyDown}>
      <button
        type="button"
        ref={button}
        class={buttonClass}
        aria-label={label}
        title={label}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        onClick={(event) => {
          event.preventDefault();
          event.stopPropagation();
          setOpen(!isOpen);
        }}
      >
        {children}
      </button>
      {isOpen && (
        <div class={`menu ${align}`} role="menu" aria-label={label}>
          {items.map((item) => (
            <button
              key={item.label}
              type="button"
              role={item.isChosen === undefined ? "menuitem" : "menuitemradio"}
              aria-checked={item.isChosen}
              tabIndex={-1}
              class={item.isDanger ? "danger" : ""}
              onClick={(event) => {
                event.preventDefault();
                event.stopPropagation();
                close();
                item.onChoose();
              }}
            >
              {item.icon && <Icon name={item.icon} size={16} />}
              <span class="menu-label">
                {item.label}
                {item.hint && <small>{item.hint}</small>}
              </span>
              {item.isChosen && <Icon name="check" size={16} />}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
