/** The smallest of 1, 2, 3, 4, 5, 6, 8 times a power of ten that is no less: its half is a plain number too. */
export function niceTop(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power >= value * (1 - 1e-9)) ?? 10;
  return Number((step * power).toPrecision(12));
}

/** Where a time axis of so many seconds has its marks: how long ago, and in words. */
export function agoTicks(seconds: number): [number, string][] {
  const step = [15, 30, 60].find((one) => seconds / one <= 5.01) ?? 60;
  const ticks: [number, string][] = [[0, "now"]];
  for (let ago = step; ago <= seconds; ago += step)
    ticks.push([ago, ago % 60 === 0 ? `−${ago / 60} min` : `−${ago} s`]);
  return ticks;
}
