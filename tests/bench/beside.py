# SPDX-License-Identifier: Apache-2.0
"""
The table of docs/beside.md: beside.py PROGRAM FOLDER

One state (8 tensors of float32, 256 MiB, four ranks) in Scalai, DCP, Orbax and below rclone's mount: installed, mounted, looked at, cut for
two ranks, damaged on the disk, and put back.  FOLDER gets what this needs: rclone by apt-get, Orbax and JAX by pip.  Needs root and network.
"""
import glob
import os
import statistics
import subprocess
import sys
import time

SCALAI, FOLDER = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
TIMES = 5
MOUNT, STORE, JOB = f"{FOLDER}/mnt", f"{FOLDER}/store", f"{FOLDER}/mnt/gpt"
RCLONE, PIP, ORBAX = f"{FOLDER}/rclone/usr/bin/rclone", f"{FOLDER}/orbax/bin/pip", f"{FOLDER}/orbax/bin/python"
ROWS = {}

DCP_SIDE = '''
import sys, time, torch, torch.distributed.checkpoint as dcp
state = {f"w{i}": torch.arange(8 << 20, dtype=torch.float32).reshape(4096, 2048) + i for i in range(8)}
what, path = sys.argv[1:]
began = time.monotonic()
if what == "save":
    dcp.save(state, checkpoint_id=path, no_dist=True)
elif what == "look":
    dcp.FileSystemReader(path).read_metadata()
else:
    got = {k: torch.zeros_like(v) for k, v in state.items()}
    dcp.load(got, checkpoint_id=path, no_dist=True)
took = time.monotonic() - began
print(took, what != "load" or all(torch.equal(got[k], state[k]) for k in state))
'''
ORBAX_SIDE = '''
import os, sys, time
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
what, path = sys.argv[1:]
def state(n):
    cut = NamedSharding(Mesh(np.array(jax.devices()[:n]), ("tp",)), PartitionSpec("tp"))
    return {f"w{i}": jax.device_put(np.arange(8 << 20, dtype=np.float32).reshape(4096, 2048) + i, cut) for i in range(8)}
c, mine = ocp.StandardCheckpointer(), state(4 if what == "save" else 2)
began = time.monotonic()
if what == "save":
    c.save(path, mine); c.wait_until_finished()
elif what == "look":
    c.metadata(path)
else:
    got = c.restore(path, jax.tree.map(ocp.utils.to_shape_dtype_struct, mine))
took = time.monotonic() - began
print(took, what != "load" or all((np.asarray(got[k]) == np.asarray(mine[k])).all() for k in mine))
'''
SHARDS = '''
import os, sys, torch
from safetensors.torch import save_file
for rank in range(4):
    os.makedirs(f"{sys.argv[1]}/{rank}")
    save_file({f"w{i}": (torch.arange(8 << 20, dtype=torch.float32).reshape(4096, 2048) + i).chunk(4)[rank].contiguous()
               for i in range(8)}, f"{sys.argv[1]}/{rank}/model.safetensors")
'''


def run(*words, check=True, **more):
    r = subprocess.run([str(w) for w in words], capture_output=True, text=True, **more)
    if check and r.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {r.returncode}\n{r.stdout}{r.stderr}")
    return r


def timed(*words, **more):
    began = time.monotonic()
    run(*words, **more)
    return time.monotonic() - began


def side(python, code, what, path):
    """Seconds within the library, and whether what it loaded is right."""
    took, right = run(python, "-W", "ignore", "-c", code, what, path, env={**os.environ, "JAX_PLATFORMS": "cpu"}).stdout.split()[-2:]
    return float(took), right == "True"


def often(what):
    return statistics.median(what() for _ in range(TIMES))


def row(name, who, seconds, said=""):
    ROWS[name, who] = seconds
    print(f"{name:24} {who:8} {seconds:8.2f} s  {said}", flush=True)


def flip(path):
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) * 2 // 5)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 64]))


def largest(folder):
    return max((p for p in glob.glob(f"{folder}/**", recursive=True) if os.path.isfile(p)), key=os.path.getsize)


def control(name, text):
    with open(f"{JOB}/.ctl/{name}", "w") as f:
        f.write(text)


def shown(name):
    with open(f"{JOB}/.ctl/{name}") as f:
        return f.read()


def read_all():
    for path in glob.glob(f"{JOB}/*/model.safetensors"):
        with open(path, "rb") as f:
            while f.read(1 << 20):
                pass


def reshard(topology):
    began = time.monotonic()
    control("topology", topology)
    read_all()
    return time.monotonic() - began


def of_scalai(shards):
    def mounted():
        took = timed(SCALAI, "mount", "-o", f"log={FOLDER}/log", STORE, MOUNT)
        run(SCALAI, "umount", MOUNT)
        return took

    os.makedirs(STORE)
    os.makedirs(MOUNT)
    row("mount", "scalai", often(mounted))
    run(SCALAI, "mount", "-o", f"hold,log={FOLDER}/log", STORE, MOUNT)
    os.mkdir(JOB)
    control("layout", "mesh tp\n* tp=0\n")
    control("topology", "tp=4\n")
    row("save", "scalai", timed("sh", "-c", f"cp -r {shards}/* {JOB} && echo step=1 > {JOB}/.ctl/commit"))
    control("versions", "tag 1 first\n")
    row("look at it", "scalai", often(lambda: timed(SCALAI, "status", "-m", MOUNT, "gpt")))
    cuts = [reshard(t) for t in ("tp=2\n", "tp=4\n") * TIMES]
    row("cut for 2 or 4, read", "scalai", statistics.median(cuts))
    began = time.monotonic()
    control("rollback", "1\n")
    read_all()
    row("back to the first, read", "scalai", time.monotonic() - began)
    held = open(f"{JOB}/0/model.safetensors", "rb")
    pid = shown("../../.ctl/health").split("pid: ")[1].split()[0]
    began = time.monotonic()
    os.kill(int(pid), 9)
    held.seek(100 << 10)
    right = len(held.read(4096)) == 4096
    row("daemon killed, file open", "scalai", time.monotonic() - began, "goes on" if right else "LOST")
    held.close()
    control("wait", "\n")
    run(SCALAI, "umount", MOUNT)
    flip(largest(STORE))
    began = time.monotonic()
    found = run(SCALAI, "fsck", STORE, check=False)
    row("a bit flips on the disk", "scalai", time.monotonic() - began, f"fsck: status {found.returncode}: {found.stdout.splitlines()[0]}")


def of_library(who, python, code):
    paths = [f"{FOLDER}/{who}.{i}" for i in range(TIMES)]
    row("save", who, statistics.median(side(python, code, "save", p)[0] for p in paths))
    row("look at it", who, often(lambda: timed(python, "-W", "ignore", "-c", code.replace("8 << 20", "8 << 10").replace("4096", "4"), "look", paths[0])),
        "a program, its imports too")
    row("cut for 2 or 4, read", who, often(lambda: side(python, code, "load", paths[0])[0]))
    flip(largest(paths[1]))
    took, right = side(python, code, "load", paths[1])
    row("a bit flips on the disk", who, took, "load: right" if right else "load: OTHER NUMBERS, no error")


def of_rclone(shards):
    path = {**os.environ, "PATH": f"{FOLDER}/rclone/bin:{os.environ['PATH']}"}

    def mounted():
        began = time.monotonic()
        run(RCLONE, "mount", "--daemon", shards, MOUNT, env=path)
        took = time.monotonic() - began
        run("umount", MOUNT)
        return took

    row("mount", "rclone", often(mounted))
    run(RCLONE, "mount", "--daemon", shards, MOUNT, env=path)
    held = open(f"{MOUNT}/0/model.safetensors", "rb")
    run("pkill", "-9", "-f", f"rclone mount --daemon {shards}")
    began = time.monotonic()
    try:
        held.seek(100 << 10)
        right = len(held.read(4096)) == 4096
    except OSError as e:
        right = False
        said = e.strerror
    row("daemon killed, file open", "rclone", time.monotonic() - began, "goes on" if right else f"ends: {said}")
    run("umount", "-l", MOUNT)


def main():
    os.makedirs(FOLDER)
    python = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../.deps/venv/bin/python")
    row("install", "rclone", timed("sh", "-c", "apt-get download rclone fuse3 && for p in *.deb; do dpkg -x $p rclone; done", cwd=FOLDER))
    run(sys.executable, "-m", "venv", f"{FOLDER}/orbax")
    row("install", "orbax", timed(PIP, "install", "-q", "orbax-checkpoint", "jax"))
    shards = f"{FOLDER}/shards"
    run(python, "-c", SHARDS, shards)
    of_scalai(shards)
    of_rclone(shards)
    of_library("dcp", python, DCP_SIDE)
    of_library("orbax", ORBAX, ORBAX_SIDE)


main()
