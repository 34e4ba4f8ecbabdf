// Numbers as people read them.

export function seconds(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms >= 3_600_000) return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

export function compact(value: number): string {
  return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
}

export function bytes(value: number): string {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(value, 1)) / 10));
  const shown = value / 1024 ** power;
  return `${shown >= 100 || power === 0 ? Math.round(shown) : shown.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][power] ?? ""}`;
}

/** A rate with about three digits. */
export function rate(value: number): string {
  return value >= 100 || value === 0 ? count(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export function percent(share: number): string {
  return `${Number((share * 100).toFixed(share < 0.1 ? 1 : 0))} %`;
}
