"""Asks the advisory service about every pinned package: `make audit`. Standard library and pip-audit only.

    python locks/audit.py locks/cpu.txt locks/dev.txt ...

Exit code 0: all were asked about, and none has a known vulnerability. 1: some have. 2: the service could not be asked
about some or all; pip-audit itself takes those for good.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MAX_NAMED = 10


def main(locks: list[str]) -> int:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    reports = []
    for lock in locks:
        done = subprocess.run([*command, "-f", "json", "-r", lock], capture_output=True, text=True, check=False)
        try:
            reports += json.loads(done.stdout)["dependencies"]
        except (ValueError, KeyError):
            print(f"{lock}: the service for advisories could not be asked. {last_line(done.stderr)}", file=sys.stderr)
            return 2
    code, text = verdict(reports)
    print(text, file=sys.stderr if code else sys.stdout)
    return code


def verdict(packages: list[dict[str, Any]]) -> tuple[int, str]:
    """Exit code, and what to say of packages as pip-audit reports them."""
    vulnerable = sorted({line for package in packages for line in advisories(package)})
    skipped = sorted({package["name"] for package in packages if "skip_reason" in package})
    names = {package["name"] for package in packages}
    lines = [f"{len(vulnerable)} known vulnerabilities:", *vulnerable] if vulnerable else []
    if skipped:
        more = f" and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
        lines.append(
            f"{len(skipped)} of {len(names)} packages could not be audited, since the service does not know them or "
            f"can't be reached: {', '.join(skipped[:MAX_NAMED])}{more}."
        )
    if not lines:
        lines.append(f"{len(names)} packages, no known vulnerability.")
    return 1 if vulnerable else 2 if skipped or not names else 0, "\n".join(lines)


def advisories(package: dict[str, Any]) -> list[str]:
    """A line for each."""
    name = f"{package['name']} {package.get('version', '')}"
    return [
        f"  {name}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no version'}"
        for found in package.get("vulns", ())
    ]


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
