"""The tensors of Llama-3.1-405B with Adam, by name and number, at any width: for what depends on how
many tensors there are, and not on their bytes."""
import os

import numpy as np
from safetensors.numpy import save_file

LAYERS = 126
LAYOUT = "use megatron-gpt glu=1:1"
MOMENTS = ("param", "exp_avg", "exp_avg_sq")


def stages(pp):
    """126 layers divide by few pipelines: the first stages take one more."""
    return "+".join(str(LAYERS // pp + (i < LAYERS % pp)) for i in range(pp))


def topology(tp, pp, dp):
    return f"tp={tp} pp={pp} dp={dp} stages={stages(pp)}"


def layer(hidden):
    """name -> (shape of the whole, dimension that tp cuts or None)"""
    return {"self_attention.linear_qkv.layer_norm_weight": ((hidden,), None),
            "self_attention.linear_qkv.weight": ((2 * hidden, hidden), 0),
            "self_attention.linear_proj.weight": ((hidden, hidden), 1),
            "mlp.linear_fc1.layer_norm_weight": ((hidden,), None),
            "mlp.linear_fc1.weight": ((6 * hidden, hidden), 0),
            "mlp.linear_fc2.weight": ((hidden, 3 * hidden), 1)}


def rank_names(pp, stage, hidden):
    here = int(stages(pp).split("+")[stage])
    for i in range(here):
        for name, (shape, cut) in layer(hidden).items():
            yield f"decoder.layers.{i}.{name}", shape, cut
    if stage == 0:
        yield "embedding.word_embeddings.weight", (2048, hidden), 0
    if stage == pp - 1:
        yield "decoder.final_layernorm.weight", (hidden,), None
        yield "output_layer.weight", (2048, hidden), 0


def write_job(folder, hidden, tp, pp):
    """A folder for each of tp * pp ranks; -> bytes of the files."""
    total = 0
    for rank in range(tp * pp):
        home = os.path.join(folder, str(rank))
        os.makedirs(home, exist_ok=True)
        model, optimizer = {}, {}
        for name, shape, cut in rank_names(pp, rank // tp, hidden):
            piece = tuple(n // tp if i == cut else n for i, n in enumerate(shape))
            model[name] = np.full(piece, 1, np.uint16)
            for m in MOMENTS:
                optimizer[f"optimizer.state.{m}.{name}"] = np.full(piece, 1, np.float32)
        for file, tensors in (("model", model), ("optimizer", optimizer)):
            path = os.path.join(home, f"{file}.safetensors")
            save_file(tensors, path)
            total += os.path.getsize(path)
    return total
