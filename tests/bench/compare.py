"""What was measured, beside its goals and the figures that were committed last: the lines of build-asan/bench.json."""
import json
import os

from harness import NOISY, ROOT

COMMITTED = os.path.join(ROOT, "docs/benchmarks/figures.json")
TIMES = ("s", "ms")
LEAST = 0.1 # a figure of one sample has a spread, too


def worse_by(row, was):
    """How much worse a row is than the committed figure, as a part of it; 0: it is not."""
    now, then = (row["value"], was["value"]) if row["best"] == "low" else (was["value"], row["value"])
    if now <= then:
        return 0
    return round(now / then - 1, 3) if then else float(now)


def same_machine(one, other):
    return all(one[k] == other[k] for k in ("cpu", "cores", "memory_gib"))


def lines(rows, committed, same_machine=True):
    """A dictionary for each row.  `worse_than_committed_by` is None where the two have other sizes, or are times of two machines."""
    known = {(r["case"], r["against"]): r for r in committed}
    out = []
    for row in rows:
        was = known.get((row["case"], row["against"]))
        alike = row["same_sizes"] and (same_machine or row["unit"] not in TIMES)
        worse = worse_by(row, was) if was and alike else None
        spread = max(row["spread"], was.get("spread", max(was["noisy"], default=NOISY)), LEAST) if was else row["spread"]
        out.append({"name": f"{row['case']}, against {row['against']}" if row["against"] else row["case"], "value": row["value"],
                    "unit": row["unit"], "goal": None if row["target"] is None else f"{'>=' if row['best'] == 'high' else '<='} {row['target']:g}",
                    "met": row["met"], "committed": was["value"] if was else None, "worse_than_committed_by": worse, "spread": spread,
                    "is_worse": bool(worse and worse > spread)})
    return out


def committed():
    with open(COMMITTED) as f:
        return json.load(f)


def write(path, found):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(line, ensure_ascii=False) for line in found) + "\n]\n")


def tell(found):
    """-> sentences about what got worse by more than its spread."""
    return [f"worse than the committed figure by {line['worse_than_committed_by']:.0%} (spread {line['spread']:.0%}): {line['name']}: "
            f"{line['value']:g} {line['unit']}, it was {line['committed']:g}" for line in found if line["is_worse"]]
