"""A tiny recurrent model of random weights, in llama.cpp's architecture mamba."""

from pathlib import Path

import gguf
import numpy as np

from engine.models.shapes import shape_named
from engine.models.synthetic import _add_vocabulary

N_EMBD, N_LAYER, CONV, STATE, DT_RANK = 64, 2, 4, 16, 4
INNER = 2 * N_EMBD


def write_mamba(path: Path) -> Path:
    """Write the model with the vocabulary of the synthetic shape "tiny"; a context of 512 tokens."""
    shape, random = shape_named("tiny"), np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("Tiny Mamba")
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYER)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(DT_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_vocabulary(writer, shape)
    rows_of = {
        "ssm_in.weight": (2 * INNER, N_EMBD), "ssm_conv1d.weight": (INNER, CONV), "ssm_conv1d.bias": (INNER,),
        "ssm_x.weight": (DT_RANK + 2 * STATE, INNER), "ssm_dt.weight": (INNER, DT_RANK), "ssm_dt.bias": (INNER,),
        "ssm_out.weight": (N_EMBD, INNER),
    }  # fmt: skip
    tensors = {"output_norm.weight": np.ones(N_EMBD)}
    tensors["token_embd.weight"] = random.normal(0, 0.3, (shape.n_vocab, N_EMBD))
    for layer in range(N_LAYER):
        block = f"blk.{layer}."
        tensors[block + "attn_norm.weight"] = np.ones(N_EMBD)
        tensors |= {block + name: random.normal(0, size[-1] ** -0.5, size) for name, size in rows_of.items()}
        tensors[block + "ssm_a"] = -np.tile(np.arange(1.0, STATE + 1), (INNER, 1))
        tensors[block + "ssm_d"] = np.ones(INNER)
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
