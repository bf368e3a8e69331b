"""The figures and plots of docs/benchmarks/figures.md, from what bench.py measured.
    page.py FILE.json        (bench.py --page does the same)
"""
import json
import os
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from harness import ROOT  # noqa: E402

FOLDER = os.path.join(ROOT, "docs/benchmarks")
PAGE = os.path.join(FOLDER, "figures.md")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalai", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False})


def save(figure, name):
    figure.tight_layout()
    figure.savefig(os.path.join(FOLDER, name), metadata={"Date": None})
    plt.close(figure)


def plot_peers(cases):
    ways = [("dcp", "PyTorch DCP's load", "#888888"), ("naive", "script: load, merge, cut, save", "#bbbbbb"),
            ("load_file", "Scalai, load_file, every page touched", "#7fb3d5"), ("views", "Scalai, all ranks read everything", "#2e86c1"),
            ("first", "Scalai, first tensor of the first rank", "#1b4f72")]
    figure, axes = plt.subplots(figsize=(max(9, 0.8 * len(cases)), 3.8))
    for k, (key, label, colour) in enumerate(ways):
        axes.bar([i + (k - 2) * 0.16 for i in range(len(cases))], [r[key] for r in cases.values()], 0.15, label=label, color=colour)
    axes.set_yscale("log")
    axes.set_ylabel("seconds (log)")
    axes.set_xticks(range(len(cases)), ["\n".join(where.rsplit(" ", 1)) for where in cases])
    axes.legend(frameon=False, ncol=3, loc="upper center", bbox_to_anchor=(0.5, 1.25))
    save(figure, "peers.svg")


def plot_plan(rows):
    figure, axes = plt.subplots(figsize=(5, 3.2))
    axes.loglog([r["pieces"] for r in rows], [r["plan_s"] for r in rows], "o-", color="#2e86c1")
    for r in rows:
        axes.annotate(f"{r['from']:,}", (r["pieces"], r["plan_s"]), textcoords="offset points", xytext=(4, -10))
    axes.set_xlabel("pieces planned (beside the points: old ranks)")
    axes.set_ylabel("seconds")
    save(figure, "plan.svg")


def plot_views(rows):
    found = [(r["case"], r["value"]) for r in rows if r["against"] == "null FUSE server"]
    figure, axes = plt.subplots(figsize=(7, 1 + 0.17 * len(found)))
    axes.barh([c for c, _ in found][::-1], [v for _, v in found][::-1], color="#2e86c1")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlabel("speed of a view / speed of a FUSE server that does nothing")
    save(figure, "views.svg")


def table(rows):
    out = ["| case | against | measured | target | |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        target = "" if r["target"] is None else f"{'≥' if r['best'] == 'high' else '≤'} {r['target']:g}"
        verdict = {True: "met", False: "**missed**", None: ""}[r["met"]]
        if r["noisy"]:
            verdict += f" (noisy: spread {', '.join(f'{100 * n:.0f} %' for n in r['noisy'])})"
        detail = f" ({r['detail']})" if r["detail"] else ""
        out.append(f"| {r['case']} | {r['against']} | {r['value']:g} {r['unit']}{detail} | {target} | {verdict.strip()} |")
    return "\n".join(out)


def write(out):
    os.makedirs(FOLDER, exist_ok=True)
    m, rows = out["machine"], out["rows"]
    judged = [r for r in rows if r["met"] is not None]
    text = [f"{m['date']}: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}, Python {m['python']}. "
            f"{len(rows)} figures, of which {len(judged)} have a target and {sum(r['met'] for r in judged)} meet it."]
    if out.get("later"):
        text.append(f"Measured in later runs, by themselves: {', '.join(out['later'])}. Nothing is compared across runs.")
    if out["curves"].get("peers"):
        plot_peers(out["curves"]["peers"])
        text.append("![seconds of a reshard: Scalai, DCP, a script](peers.svg)")
    if out["curves"].get("plan"):
        plot_plan(out["curves"]["plan"].values())
        text.append("![time of a plan over its pieces](plan.svg)")
    if any(r["against"] == "null FUSE server" for r in rows):
        plot_views(rows)
        text.append("![views against a null FUSE server](views.svg)")
    text.append(table(rows))
    with open(PAGE) as f:
        page = f.read()
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    with open(PAGE, "w") as f:
        f.write(head + BEGIN + "\n\n" + "\n\n".join(text) + "\n\n" + END + tail)
    with open(os.path.join(FOLDER, "figures.json"), "w") as f:
        json.dump(out, f, indent=1)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        write(json.load(file))
