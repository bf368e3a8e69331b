#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank directory beside a directory of a real file system: the same calls, and the same answers.

    posix NATIVE_DIR RANK_DIR [CHECK | -CHECK...]      only these; all but these

Each check is a function that does something in a directory and returns what came of it: values, or the
names of errors.  Where Scalai answers otherwise, DIFFERENT says what, and docs/durability.md why.  Root
only: the checks of permissions change the user.
"""
import importlib
import os
import sys

from common import CHECKS

SUBJECTS = ("names", "bytes", "mappings", "attributes", "locks", "users", "histories")
# what Scalai answers instead
DIFFERENT = {
    "rename_whiteout": "EINVAL",
    "tmpfile": "ENOTSUP",
}


def main():
    for subject in SUBJECTS:
        importlib.import_module(subject)
    native, rank = sys.argv[1:3]
    wanted = [a for a in sys.argv[3:] if a[0] != "-"]
    unwanted = [a[1:] for a in sys.argv[3:] if a[0] == "-"]
    bad = done = 0
    for f in CHECKS:
        if f.__name__ in unwanted or (wanted and f.__name__ not in wanted):
            continue
        answers = []
        for root in (native, rank):
            d = f"{root}/{f.__name__}"
            os.mkdir(d)
            old = os.umask(0o022)
            try:
                answers.append(f(d))
            finally:
                os.umask(old)
        a, b = answers
        done += 1
        if f.__name__ in DIFFERENT:
            a = DIFFERENT[f.__name__]
        if a != b:
            bad += 1
            print(f"DIFFERENT  {f.__name__}")
            if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
                for x, y in list((x, y) for x, y in zip(a, b) if x != y)[:8]:
                    print(f"    native {x!r:.300}\n    scalai {y!r:.300}")
            else:
                print(f"    native {a!r:.300}\n    scalai {b!r:.300}")
    print(f"figure: {done} checks against a real file system, {bad} different; {len(DIFFERENT)} of them are what Scalai does not have")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
