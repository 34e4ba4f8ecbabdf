import type { ButtonHTMLAttributes, ComponentChildren, JSX } from "preact";

import { Icon, type IconName } from "./icons.tsx";

interface IconButtonProps extends ButtonHTMLAttributes {
  icon: IconName;
  label: string;
  size?: number;
}

/** A button with no words: the label is its name and its tooltip. */
export function IconButton({ icon, label, size, ...rest }: IconButtonProps): JSX.Element {
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} {...rest}>
      <Icon name={icon} {...(size === undefined ? {} : { size })} />
    </button>
  );
}

interface ButtonProps extends Omit<ButtonHTMLAttributes, "type"> {
  kind?: "plain" | "main" | "danger";
  children: ComponentChildren;
  type?: "button" | "submit";
}

export function Button({ kind = "plain", type = "button", children, ...rest }: ButtonProps): JSX.Element {
  return (
    <button type={type} class={`button ${kind}`} {...rest}>
      {children}
    </button>
  );
}
