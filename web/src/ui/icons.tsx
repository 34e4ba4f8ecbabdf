// Line icons on a 24 unit grid, drawn here.
import type { JSX } from "preact";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  sidebar: "M4.5 5h15a1 1 0 0 1 1 1v12a1 1 0 0 1-1 1h-15a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1ZM9.5 5v14",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 9.2a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4ZM9 19.2a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4Z",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5 10 17l9-10",
  refresh: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  pencil: "m5 19 .8-3.8L16.5 4.5l3 3L8.8 18.2ZM14.5 6.5l3 3",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.5 11v5M13.5 11v5",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  chevron: "m7 10 5 5 5-5",
  left: "m14 7-5 5 5 5",
  right: "m10 7 5 5-5 5",
  close: "M6 6l12 12M18 6 6 18",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10Z",
  screen: "M4 5h16v11H4zM9 20h6M12 16v4",
  gauge: "M4 17a9 9 0 1 1 16 0M12 14l4-5M12 15.2a1.2 1.2 0 1 0 0-2.4 1.2 1.2 0 0 0 0 2.4Z",
  help: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM9.5 9.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M12 16.5h.01",
  key: "M8.5 18a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM12 10.5 20 4M16.5 7l2.5 2.5",
  alert: "M12 4 2.8 19.5h18.4ZM12 10v4.5M12 17h.01",
  tool: "M14.5 6.5a4 4 0 0 1 5-1.5l-2.7 2.7.5 2 2 .5L22 7.500a4 4 0 0 1-5.500 5L8.500 20.500 5 17l8-8a4 4 0 0 1 1.500-2.500Z",
  thought: "M9.5 18h5M10.5 21h3M8 14.500a5.500 5.500 0 1 1 8 0c-.8.8-1 1.500-1 2.500H9c0-1-.2-1.700-1-2.500Z",
  braces: "M9 4.500c-2 0-2.500 1-2.500 2.500v2.500c0 1.500-.8 2.500-2 2.500 1.200 0 2 1 2 2.500V17c0 1.500.5 2.500 2.500 2.500M15 4.500c2 0 2.500 1 2.500 2.500v2.500c0 1.500.8 2.500 2 2.500-1.200 0-2 1-2 2.500V17c0 1.500-.5 2.500-2.500 2.500",
  upload: "M12 15V4M7.500 8 12 3.500 16.500 8M5 15v4.500h14V15",
  download: "M12 4v11M7.500 11l4.500 4.500 4.500-4.500M5 19.500h14",
  chat: "M5 5h14v11h-8l-4 3.500V16H5Z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg
      class="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width={name === "more" ? 2.6 : 1.7}
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

/** Rows of a batch, of which each goes on for as long as it needs. */
export function Logo({ size = 22 }: { size?: number }): JSX.Element {
  return (
    <svg class="logo" width={size} height={size} viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="7" fill="var(--accent)" />
      <path
        d="M6.500 8h6.500M6.500 12h11M6.500 16h4"
        stroke="var(--on-accent)"
        stroke-width="2.300"
        stroke-linecap="round"
        fill="none"
      />
      <circle cx="14.800" cy="16" r="1.500" fill="var(--on-accent)" />
    </svg>
  );
}
