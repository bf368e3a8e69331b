#!/usr/bin/env python3
"""Measures Scalai beside its peers and the machine's own limits, in one run.

    tools/bench [--reps N] [--quick] [--json FILE] [--page] [CASE…]

Prints a table of ratios; --json writes all figures, --page rewrites the figures and plots of
docs/benchmarks.md.  Without CASE all are run but those that take long; --list names all, and CASE may be a
pattern ('peers_xfs_*').  Needs root (mounts, loop devices,
page cache) and about 25 GB of disk.  Ratios are of medians, both sides taken in turns in this run;
one is refused when its two sides did not read or write the same bytes on the same file system with
the same cache, and one whose repetitions spread over 20 % is marked as too noisy.
"""
import argparse
import fnmatch
import json
import os
import platform
import sys
import time

import data
import files
import formats
import meta
import moves
import names
from harness import Mount, Report, host_leaves_memory

CASES = {"views": files.views, "real_files": files.real_files, "unneeded_views": files.unneeded_views,
         "materialize": files.materialize, "engines": files.engines, "opens": meta.opens, "topology": meta.topology, "plan": meta.plan,
         "many": meta.many, "first_tensor": moves.first_tensor, "peers": moves.peers, "peers_large": moves.peers_large, "save": moves.save,
         "names": names.names, "commits": names.commits, "torch_files": formats.torch_files, "dcp_folders": formats.dcp_folders, "parses": formats.parses, "data_read": data.reading, "data_start": data.start, "memory": moves.memory, **moves.ON_DEMAND}


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "date": time.strftime("%Y-%m-%d")}


def update(old, new, cases):
    """Rows of some cases measured anew, in the place of the old ones."""
    fresh = {c: [r for r in new["rows"] if r.get("group") == c] for c in cases}
    rows = []
    for r in old["rows"]:
        group = r.get("group")
        if group not in fresh:
            rows.append(r)
        elif fresh[group]:
            rows += fresh[group]
            fresh[group] = []
    curves = {name: {**old["curves"].get(name, {}), **new["curves"].get(name, {})} for name in {**old["curves"], **new["curves"]}}
    return {"machine": old["machine"], "rows": rows + [r for c in cases for r in fresh[c]],
            "curves": curves, "later": sorted({*old.get("later", []), *cases})}


def keep(a, report, was, cases):
    """Writes --json's file; -> what is in it."""
    out = {"machine": machine(), "rows": report.rows, "curves": report.curves, "later": []}
    if was:
        out = update(was, out, cases)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*", metavar="CASE")
    ap.add_argument("--reps", type=int, default=7, help="repetitions of everything but peers")
    ap.add_argument("--peer-reps", type=int, default=5)
    ap.add_argument("--quick", action="store_true", help="small files, 5 repetitions: whether it works, not how fast")
    ap.add_argument("--json", metavar="FILE")
    ap.add_argument("--page", action="store_true")
    ap.add_argument("--update", action="store_true", help="keep the other cases' rows of --json's file; the page says so")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    if a.list:
        print("\n".join(CASES))
        return 0
    if unknown := [c for c in a.cases if not fnmatch.filter(CASES, c)]:
        sys.exit(f"no case {', '.join(unknown)}; --list names them")
    a.cases = [c for word in a.cases for c in fnmatch.filter(CASES, word)]
    a.file_bytes = (32 if a.quick else 512) << 20
    a.reps = min(a.reps, 5) if a.quick else a.reps
    a.peer_reps = 2 if a.quick else a.peer_reps
    was = None
    if a.update:
        with open(a.json) as f:
            was = json.load(f)
    report, began, done = Report(), time.monotonic(), []
    report.curves = {}
    for name in a.cases or [c for c in CASES if c not in moves.ON_DEMAND]:
        print(f"== {name}", flush=True)
        before = len(report.rows)
        with host_leaves_memory():
            CASES[name](report, a)
        for row in report.rows[before:]:
            row["group"] = name
        done.append(name)
        keep(a, report, was, done) # what was measured stays, whatever happens to the next case
    if Mount.most_rss:
        report.add("daemon's anonymous memory, all of the above, at most", "", round(max(Mount.most_rss.values())), "MiB", 256, "low",
                   detail=", ".join(f"{k} {v:.0f}" for k, v in Mount.most_rss.items()))
    missed = [r for r in report.rows if r["met"] is False]
    print(f"{len(report.rows)} figures in {time.monotonic() - began:.0f} s, {len(missed)} miss their target")
    out = keep(a, report, was, done)
    if a.page:
        import page
        page.write(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
