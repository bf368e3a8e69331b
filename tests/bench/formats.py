"""Files of torch.save(), folders of torch.distributed (DCP): beside safetensors, and beside the libraries' own ways."""
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

from harness import HERE, SCALAI, TOOL, Disk, Mount, Sample, pick, put, run, supply

RANKS, TENSORS = 16, 300


def state(size, ranks, tensors):
    """-> (name -> rows of one rank's part), columns: fp32 tensors of so many bytes in all."""
    columns = 1024
    rows = max(1, size // (4 * columns * tensors * ranks))
    return {f"layers.{i}.weight": rows for i in range(tensors)}, columns


def parts(folder, suffix, size, ranks, tensors):
    """A file for each rank; -> their names."""
    import torch
    from safetensors.torch import save_file

    names, columns = state(size, ranks, tensors)
    files = []
    for rank in range(ranks):
        torch.manual_seed(rank)
        part = {n: torch.randn(rows, columns) for n, rows in names.items()}
        files.append(os.path.join(folder, f"{rank}{suffix}"))
        if suffix == ".pt":
            torch.save(part, files[-1])
        else:
            save_file(part, files[-1])
    return files


def job_of(m, job, files, suffix):
    m.job(job, "mesh tp\n* tp=0\n", f"tp={len(files)}", "materialize=never verify=background")
    for rank, file in enumerate(files):
        os.makedirs(os.path.join(m.at, job, str(rank)), exist_ok=True)
        shutil.copyfile(file, os.path.join(m.at, job, str(rank), "model" + suffix))
    m.commit(job)


def seconds(use):
    began = time.perf_counter()
    use()
    return time.perf_counter() - began


def first_byte(path):
    with open(path, "rb", buffering=0) as f:
        f.read(1)


def torch_files(report, a):
    """Commits, first bytes and loads of .pt files, beside the same tensors in safetensors."""
    size = int(pick(a, 1e9, 1e8, 2e7))
    with Disk("tmpfs") as d, Mount(d, "torch files") as m:
        made = {}
        for job, suffix in (("pt", ".pt"), ("st", ".safetensors")):
            folder = os.path.join(d.path, job)
            os.mkdir(folder)
            made[job] = parts(folder, suffix, size, RANKS, TENSORS), suffix
            job_of(m, job, *made[job])
        took = {"pt": [], "st": []}
        for step in range(a.reps):
            for job, (files, suffix) in made.items():
                for rank, file in enumerate(files):
                    shutil.copyfile(file, os.path.join(m.at, job, str(rank), "model" + suffix))
                took[job].append(seconds(lambda: m.commit(job, step + 2)))
        ours, theirs = (Sample(took[j], size, d.fs, "warm") for j in ("pt", "st"))
        report.ratio(f"commit of {RANKS} .pt files", "commit of the same in safetensors", ours, theirs, 1 / 1.1, f"{ours.median * 1e3:.0f} ms")
        times = []
        for i in range(2 * a.reps):
            put(m.ctl("pt", "topology"), f"tp={(8, 16)[i % 2]}")
            times.append(seconds(lambda: first_byte(os.path.join(m.at, "pt/3/model.pt"))))
        sample = Sample(times, 1, d.fs, "warm")
        report.add("topology written -> first byte of a .pt view", "", round(sample.median * 1e3, 3), "ms", 5, "low", (sample,))
        loads(report, a, m, d, size, {job: files for job, (files, _) in made.items()})


def loads(report, a, m, d, size, plain):
    """torch.load(mmap=True) and load_file, each of views that nobody has read, and of plain files; all pages touched."""
    took = {("views", "pt"): [], ("views", "st"): [], ("plain", "pt"): [], ("plain", "st"): []}
    files = {"pt": "model.pt", "st": "model.safetensors"}
    loaders = {job: subprocess.Popen([sys.executable, os.path.join(HERE, "load.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for job in files}
    try:
        for p in loaders.values():
            assert p.stdout.readline() == "ready\n"
        for i in range(a.reps):
            for job, p in loaders.items():
                put(m.ctl(job, "topology"), f"tp={(8, 4)[i % 2]}")
                views = [os.path.join(m.at, job, str(r), files[job]) for r in range((8, 4)[i % 2])]
                for what, names in (("views", views), ("plain", plain[job])):
                    supply(size)
                    began = time.perf_counter()
                    p.stdin.write(json.dumps(names) + "\n")
                    p.stdin.flush()
                    assert p.stdout.readline() == "done\n"
                    took[what, job].append(time.perf_counter() - began)
    finally:
        for p in loaders.values():
            p.stdin.close()
            p.wait()
    for what, target, name in (("views", 0.9, "views"), ("plain", None, "plain files (the libraries' limit)")):
        ours, theirs = (Sample(took[what, j], size, d.fs, what) for j in ("pt", "st"))
        report.ratio(f"torch.load(mmap=True) of .pt {name}, all pages", f"load_file of safetensors {what}", ours, theirs, target)
    ours, theirs = (Sample(took[w, "pt"], size, d.fs, "mapped") for w in ("views", "plain"))
    report.ratio("torch.load(mmap=True) of .pt views, all pages", "the same of plain .pt files", ours, theirs)


def dcp_folders(report, a):
    """.dcp/TOPOLOGY: its metadata, dcp.load from it beside a real folder; import of such a folder beside load, cut, save."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    warnings.filterwarnings("ignore")
    size = int(pick(a, 1e9, 1e8, 2e7))
    with Disk("xfs") as d, Mount(d, "dcp") as m:
        folder = os.path.join(d.path, "parts")
        os.mkdir(folder)
        files = parts(folder, ".safetensors", size, RANKS, TENSORS)
        job_of(m, "st", files, ".safetensors")
        real, copy = os.path.join(d.path, "real"), os.path.join(d.path, "copy")
        run(sys.executable, os.path.join(HERE, "save_dcp.py"), real, *files) # as RANKS ranks save it
        shutil.rmtree(folder)
        names, columns = state(size, RANKS, TENSORS)
        shutil.copytree(os.path.join(m.at, f"st/.dcp/tp={RANKS}"), copy)
        times, took = [], {"first": [], "again": [], "real": [], "copy": []}
        whole = {n: torch.zeros(rows * RANKS, columns) for n, rows in names.items()}
        for step in range(a.reps):
            with open(os.path.join(m.at, "st/0/note"), "w") as f:
                f.write(str(step))
            m.commit("st", step + 2)
            ours = os.path.join(m.at, f"st/.dcp/tp={RANKS}")
            times.append(seconds(lambda: first_byte(os.path.join(ours, ".metadata"))))
            for way, at in (("first", ours), ("real", real), ("copy", copy), ("again", ours)):
                gc.collect() # else one of them always collects what the others left
                took[way].append(seconds(lambda: dcp.load(whole, checkpoint_id=at, no_dist=True)))
        sample = Sample(times, 1, d.fs, "warm")
        report.add(f".dcp/tp={RANKS}/.metadata of {TENSORS} tensors, after a commit", "", round(sample.median * 1e3, 2), "ms", 50, "low", (sample,))
        theirs = Sample(took["real"], size, d.fs, "cached")
        for what, way in (("the first time", "first"), ("again", "again")):
            ours = Sample(took[way], size, d.fs, "cached")
            report.ratio(f"dcp.load from .dcp, {what}", "dcp.load from the folder that dcp.save wrote, cached", ours, theirs, 0.9)
            report.ratio(f"dcp.load from .dcp, {what}", "dcp.load from a copy of .dcp, cached", ours, Sample(took["copy"], size, d.fs, "cached"))
        imports(report, a, m, d, size, real, whole, dcp, save_file)


def imports(report, a, m, d, size, real, whole, dcp, save_file):
    """A folder of RANKS writers as files of 8 ranks: imported, presented and read, or loaded, cut and saved."""
    ranks, took = 8, {"ours": [], "theirs": []}
    buffer = bytearray(1 << 20)

    def ours(job):
        run(SCALAI, "import", "-m", m.at, job, real, "--topology", f"tp={ranks}", "--layout", os.path.join(d.path, "cut.layout"))
        for rank in range(ranks):
            with open(os.path.join(m.at, job, f".as/tp={ranks}/{rank}/real.safetensors"), "rb", buffering=0) as f:
                while f.readinto(buffer):
                    pass

    def theirs(to):
        dcp.load(whole, checkpoint_id=real, no_dist=True)
        for rank in range(ranks):
            save_file({n: t.chunk(ranks)[rank].clone() for n, t in whole.items()}, os.path.join(to, f"{rank}.safetensors"))

    with open(os.path.join(d.path, "cut.layout"), "w") as f:
        f.write("mesh tp\n* tp=0\n")
    for i in range(a.reps):
        gc.collect()
        took["ours"].append(seconds(lambda: ours(f"import{i}")))
        with tempfile.TemporaryDirectory(dir=d.path) as to:
            took["theirs"].append(seconds(lambda: theirs(to)))
    report.ratio("import of a DCP folder (reflink), all of 8 ranks read", "dcp.load, cut, save_file", *(Sample(took[w], size, d.fs, "cached") for w in ("ours", "theirs")), 4)


def metadata_of(path, tensors, writers):
    """A .metadata of so many tensors with a chunk of each writer, as a save of many ranks makes it: no two items share a text."""
    import pickle
    import torch
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    rows, columns, of_one = 8, 1024, 34000
    state, storage = {}, {}
    for i in range(tensors):
        name = f"optimizer.state.exp_avg_sq.decoder.layers.{i}.mlp.experts.".ljust(200, "x") + ".linear_fc1.weight"
        chunks = [md.ChunkStorageMetadata(torch.Size([w * rows, 0]), torch.Size([rows, columns])) for w in range(writers)]
        state[name] = md.TensorStorageMetadata(md.TensorProperties(dtype=torch.float32), torch.Size([writers * rows, columns]), chunks)
        for w, c in enumerate(chunks):
            index = md.MetadataIndex("".join(list(name)), torch.Size(list(c.offsets)), w)
            storage[index] = _StorageInfo("".join(["__", f"{w}_0.distcp"]), i * of_one, of_one)
    with open(path, "wb") as f:
        pickle.dump(md.Metadata(state, None, storage), f)


def parses(report, a):
    """A .pt of 3,036 tensors, a .metadata of 100,000 chunks: parsed by themselves, in memory."""
    import torch
    with tempfile.TemporaryDirectory() as folder:
        pt, metadata = f"{folder}/many.pt", f"{folder}/.metadata"
        torch.save({f"model.decoder.layers.{i // 24}.part.{i % 24}.weight": torch.full((4, 8), float(i)) for i in range(3036)}, pt)
        tensors = pick(a, 1000, 100, 20)
        metadata_of(metadata, tensors, 100)
        for path, nr, what, most in ((pt, 3036, "parse of a .pt of 3,036 tensors", 0.01),
                                     (metadata, 100 * tensors, f"parse of a .metadata of {100 * tensors:,} chunks", 1)):
            got = json.loads(run(TOOL["parse"], 3 * a.reps, path))
            assert got["found"] == nr, got
            sample, cpu = (Sample(got[k], 0, "", "") for k in ("seconds", "cpu"))
            size = f"{os.path.getsize(path) / 1e6:.1f} MB; {cpu.median * 1e3:.1f} ms of the processor"
            report.add(what, "", round(sample.median * 1e3, 2), "ms", most * 1e3, "low", (sample,), size)
        report.add(what + ": memory beside the file, at most", "", got["most"], "MiB", 256, "low", must=True)
        report.add(what + ": memory that is kept", "", got["after"], "MiB", 8, "low", must=True)
