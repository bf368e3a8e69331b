# SPDX-License-Identifier: Apache-2.0
"""Trainers of frameworks, each of which saves its own kind of checkpoint and goes on from it.

    trainers.py NAME FROM TO STEPS     trains from the checkpoint FROM (-: from the start) until so many steps, saves to TO
                                       (-: nowhere), prints the loss of each step that it took, and a digest of the model

NAME: trainer (Hugging Face), accelerate, lightning.
"""
import contextlib
import hashlib
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

torch.set_num_threads(1)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))


def rows():
    return [{"input_ids": torch.arange(8) * (i + 3) % 64, "labels": torch.arange(8) * (i + 3) % 64} for i in range(32)]


def trainer(start, to, steps, losses):
    """Dropout, shuffling and the learning rate's schedule go on, too."""
    from transformers import Trainer, TrainingArguments

    class Told(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            losses.append((loss[0] if isinstance(loss, tuple) else loss).item())
            return loss
    with tempfile.TemporaryDirectory() as elsewhere:
        args = TrainingArguments(output_dir=to or elsewhere, max_steps=steps, save_steps=steps, report_to=[], use_cpu=True, seed=5,
                                 per_device_train_batch_size=2, disable_tqdm=True, logging_strategy="no", lr_scheduler_type="constant_with_warmup",
                                 warmup_steps=6)
        told = Told(model=gpt2(), args=args, train_dataset=rows())
        told.train(resume_from_checkpoint=start)
    return told.model


def accelerate(start, to, steps, losses):
    from accelerate import Accelerator
    a = Accelerator(cpu=True)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=9)
    model, optimizer, schedule = a.prepare(model, optimizer, schedule)
    model.train()
    torch.manual_seed(4)
    if start:
        a.load_state(start)
    for _ in range(schedule.scheduler.last_epoch, steps):
        row = rows()[torch.randint(32, ()).item()]
        loss = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
        a.backward(loss)
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if to:
        a.save_state(to)
    return a.unwrap_model(model)


def lightning(start, to, steps, losses):
    import logging
    import lightning as L
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Linear(12, 8))

        def training_step(self, batch, _):
            loss = (self.layers(batch) - batch).pow(2).mean()
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.01)
    t = L.Trainer(accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                  enable_model_summary=False)
    model = Model()
    t.fit(model, torch.utils.data.DataLoader(torch.arange(64.).view(8, 8) / 64, batch_size=2), ckpt_path=start, weights_only=False)
    if to:
        os.makedirs(to, exist_ok=True)
        t.save_checkpoint(f"{to}/last.ckpt")
    return model


def main():
    name, start, to, steps = sys.argv[1:]
    losses = []
    with contextlib.redirect_stdout(sys.stderr):
        model = globals()[name](None if start == "-" else start, None if to == "-" else to, int(steps), losses)
    digest = hashlib.sha256()
    for key, t in sorted(model.state_dict().items()):
        digest.update(key.encode() + t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for loss in losses:
        print(repr(loss))
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
