#!/usr/bin/env python3
"""The figures of docs/durability.md, from what tests print.

    tools/test 2>&1 | tee log; tests/fault/table.py log build-asan/meson-logs/unit-*.txt

Rewrites what is between the marks; a figure that no log has is left out, and said.
"""
import os
import re
import sys
import time

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/durability.md")
ROWS = (
    ("the daemon is killed, before, after and in the middle of calls", r"^(\d+) kills, (0) bad states"),
    ("the daemon is killed under a living mount that is used", r"(\d+) kills, (0) errors"),
    ("SIGTERM to the holder of a mount while its daemon dies", r"(\d+) mounts ended by SIGTERM to the holder while its daemon died, (0) were left"),
    ("power cuts on ext4", r"^(\d+) power cuts on ext4, (0) bad states"),
    ("power cuts on XFS", r"^(\d+) power cuts on xfs, (0) bad states"),
    ("calls that failed", r"^# (\d+) faults, \d+ of them could be done (without)"),
    ("commits that writers of every kind met", r"(\d+) commits and \d+ changes of topology under .*, (0) failed"),
    ("flipped bits, each in another place", r"(\d+) flipped bits (found)"),
    ("opens by readers while topologies change as fast as they can", r"(\d+) opens of 4 readers during \d+ changes of topology, (0) errors"),
    ("things done in a rank's folder and in a real file system", r"(\d+) checks against a real file system, (0) different"),
    ("operations of 8 processes at random", r"(\d+) operations by 8 processes in \d+ s, (0) wrong bytes"),
)
BAD = {"without": "0", "found": "0 missed"}


def main():
    text = "\n".join(open(f).read() for f in sys.argv[1:])
    lines = [f"{time.strftime('%Y-%m-%d')}, Linux {os.uname().release}, {os.cpu_count()} cores:", "", "| | times | bad states |", "| --- | --- | --- |"]
    for what, pattern in ROWS:
        found = re.findall(pattern, text, re.M)
        if found:
            lines.append(f"| {what} | {sum(int(n) for n, _ in found):,} | {BAD.get(found[0][1], found[0][1])} |")
        else:
            print(f"no figure: {what}", file=sys.stderr)
    fuzzed = re.findall(r"^ok +(\w+) +(\d+) executions, +(\d+) accepted, the slowest ([\d.]+) ms", text, re.M)
    if fuzzed:
        lines.append(f"| inputs of {len({f[0] for f in fuzzed})} parsers, changed at random; the slowest took {max(float(f[3]) for f in fuzzed):.0f} ms | "
                     f"{sum(int(f[1]) for f in fuzzed):,} | 0 |")
    memory = re.search(r"anonymous memory (\d+) MiB early, (\d+) MiB late", text)
    if memory:
        lines += ["", f"Anonymous memory of the daemon in the stress test: {memory[1]} MiB in its second quarter, {memory[2]} MiB in its last."]
    with open(PAGE) as f:
        page = f.read()
    begin, end = "<!-- figures: begin -->\n", "<!-- figures: end -->"
    page = page[:page.index(begin) + len(begin)] + "\n" + "\n".join(lines) + "\n\n" + page[page.index(end):]
    with open(PAGE, "w") as f:
        f.write(page)


if __name__ == "__main__":
    main()
