#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/sample/deepspeed: what DeepSpeed's engine.save_checkpoint() writes on two ranks, and what its ds_to_universal
makes of it.

    pip install torch==2.13.0 numpy safetensors packaging; DS_BUILD_OPS=0 pip install deepspeed==0.19.8 --no-build-isolation
    make_deepspeed_sample.py FOLDER

expected.safetensors: PARAMETER is the master weight, state.PARAMETER.exp_avg and so on what belongs to it.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from safetensors.torch import save_file


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.GELU(), torch.nn.Linear(7, 9, bias=False), torch.nn.LayerNorm(9),
                               torch.nn.Linear(9, 3))


def rank_main(rank, folder, stage):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    model = small_model()
    groups = [{"params": [p for k, p in model.named_parameters() if "bias" not in k]},
              {"params": [p for k, p in model.named_parameters() if "bias" in k], "weight_decay": 0.0}]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config={
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, "bf16": {"enabled": True}})
    for i in range(2):
        torch.manual_seed(i)
        engine.backward(engine(torch.randn(2, 10, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
    engine.save_checkpoint(folder, tag="global_step2", client_state={"consumed": 8})
    dist.barrier()


def expected(universal):
    """For stage 3 ds_to_universal leaves parameters flat."""
    out, shapes = {}, {k: p.shape for k, p in small_model().named_parameters()}
    for name in sorted(os.listdir(universal)):
        folder = os.path.join(universal, name)
        for file in os.listdir(folder) if os.path.isdir(folder) else ():
            t = torch.load(os.path.join(folder, file), weights_only=False)
            t = t["param"] if isinstance(t, dict) else t
            if file != "step.pt":
                out[name if file == "fp32.pt" else f"state.{name}.{file[:-3]}"] = t.reshape(shapes[name]).clone()
    return out


def main():
    for stage in (1, 2, 3):
        folder = os.path.join(sys.argv[1], f"z{stage}")
        shutil.rmtree(folder, ignore_errors=True)
        torch.multiprocessing.start_processes(rank_main, (folder, stage), 2, start_method="spawn")
        with tempfile.TemporaryDirectory() as universal:
            subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", os.path.join(folder, "global_step2"),
                            "--output_folder", universal, "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"],
                           check=True)
            save_file(expected(os.path.join(universal, "zero")), os.path.join(folder, "expected.safetensors"))
        for name in ("zero_to_fp32.py", "zero_to_torch.py"):
            if os.path.exists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))


if __name__ == "__main__":
    main()
