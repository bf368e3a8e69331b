#!/usr/bin/env python3
"""Measures Scalai beside its peers and the machine's own limits, in one run.

    tools/bench [--reps N] [--quick | --check | --long] [--json FILE] [--page] [CASE…]

Prints a table of ratios; --json writes all figures, --page rewrites the figures and plots of
docs/benchmarks/figures.md.  Without CASE all are run but those that take long; --list names all, and CASE may be a
pattern ('peers_xfs_*').  Needs root (mounts, loop devices,
page cache) and about 25 GB of disk.  Ratios are of medians, both sides taken in turns in this run;
one is refused when its two sides did not read or write the same bytes on the same file system with
the same cache, and one whose repetitions spread over 20 % is marked as too noisy.

--check runs every case but those that take minutes (it names them), with tiny sizes: whether each works, and
whether what does not depend on the machine (errors, bytes, memory) meets its target; else it fails.
--long measures, and fails where a figure is worse than the committed one by more than its spread.
Both write build-asan/bench.json, a line for each figure, beside its goal and the committed figure.
"""
import argparse
import fnmatch
import json
import os
import platform
import sys
import time
import traceback

import compare
import data
import files
import formats
import meta
import moves
import names
from harness import ROOT, Mount, Report, host_leaves_memory, pick

CASES = {"views": files.views, "real_files": files.real_files, "unneeded_views": files.unneeded_views,
         "materialize": files.materialize, "engines": files.engines, "opens": meta.opens, "topology": meta.topology, "plan": meta.plan,
         "many": meta.many, "heads": meta.heads, "scrapes": meta.scrapes, "first_tensor": moves.first_tensor, "peers": moves.peers, "peers_large": moves.peers_large, "save": moves.save,
         "names": names.names, "commits": names.commits, "torch_files": formats.torch_files, "dcp_folders": formats.dcp_folders, "parses": formats.parses, "data_read": data.reading, "data_start": data.start, "memory": moves.memory, **moves.ON_DEMAND}

# what --check leaves to --long: the same code as `peers`, on other file systems and with more bytes
MINUTES = ("peers_large", *moves.ON_DEMAND)
# cases whose sizes are the same with --check, so that their figures can be compared with those that were committed
SAME_SIZES = ("plan", "heads", "opens")


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


def run_case(report, a, name):
    """-> why it failed; with --check the others run all the same."""
    began, before = time.monotonic(), len(report.rows)
    print(f"== {name}", flush=True)
    report.same_sizes = not a.quick or name in SAME_SIZES
    try:
        with host_leaves_memory():
            CASES[name](report, a)
    except Exception as e:
        if not (a.check or a.long):
            raise
        traceback.print_exc()
        return [f"{name}: {type(e).__name__}: {e}"]
    finally:
        for row in report.rows[before:]:
            row["group"] = name
        report.same_sizes = not a.quick
    print(f"   {name}: {time.monotonic() - began:.1f} s", flush=True)
    return []


def judge(report, a):
    """Writes bench.json, and tells what got worse.  -> why that is a failure"""
    was = compare.committed()
    found = compare.lines(report.rows, was["rows"], compare.same_machine(machine(), was["machine"]))
    compare.write(a.lines, found)
    worse = compare.tell(found)
    print("".join(f"{sentence}\n" for sentence in worse), end="")
    if a.check and not a.cases:
        print(f"left to tools/bench --long: {', '.join(MINUTES)}")
    if report.skips and os.environ.get("SKIPS"):
        with open(os.environ["SKIPS"], "a") as f:
            f.write("".join(f"{line}\n" for line in report.skips))
    must = [f"{r['case']}: {r['value']:g} {r['unit']}, and {r['target']:g} is the goal" for r in report.rows if r["must"] and r["met"] is False]
    return must + (worse if a.long else [])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*", metavar="CASE")
    ap.add_argument("--reps", type=int, default=7, help="repetitions of everything but peers")
    ap.add_argument("--peer-reps", type=int, default=5)
    ap.add_argument("--quick", action="store_true", help="small files, 5 repetitions: whether it works, not how fast")
    ap.add_argument("--check", action="store_true", help="tiny files, one or two repetitions: whether every case works")
    ap.add_argument("--long", action="store_true", help="fail where a figure is worse than the committed one by more than its spread")
    ap.add_argument("--lines", metavar="FILE", default=os.path.join(ROOT, "build-asan/bench.json"), help="where --check and --long write lines")
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
    if a.check + a.long + a.quick > 1:
        sys.exit("--check, --long and --quick: one of them")
    a.quick |= a.check
    a.file_bytes = pick(a, 512, 32, 8) << 20
    a.reps = pick(a, a.reps, min(a.reps, 5), 1)
    a.peer_reps = pick(a, a.peer_reps, 2, 1)
    was = None
    if a.update:
        with open(a.json) as f:
            was = json.load(f)
    report, began, done, failed = Report(), time.monotonic(), [], []
    report.curves = {}
    for name in a.cases or [c for c in CASES if c not in (MINUTES if a.check else moves.ON_DEMAND)]:
        failed += run_case(report, a, name)
        done.append(name)
        keep(a, report, was, done) # what was measured stays, whatever happens to the next case
    if Mount.most_rss:
        report.add("daemon's anonymous memory, all of the above, at most", "", round(max(Mount.most_rss.values())), "MiB", 256, "low",
                   detail=", ".join(f"{k} {v:.0f}" for k, v in Mount.most_rss.items()), must=True)
    missed = [r for r in report.rows if r["met"] is False]
    print(f"{len(report.rows)} figures in {time.monotonic() - began:.0f} s, {len(missed)} miss their target")
    out = keep(a, report, was, done)
    if a.check or a.long:
        failed += judge(report, a)
    if a.page:
        import page
        page.write(out)
    print("".join(f"FAILED  {why}\n" for why in failed), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
