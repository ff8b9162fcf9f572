"""The Llama shape in PyTorch: RMS norm, rotary positions on neighbouring pairs, SwiGLU, tied embeddings."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The numbers of config.json that decide the network."""

    vocab_size: int
    context: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    rope_theta: float
    norm_eps: float
    dropout: float


def rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position and pair, each of shape (context, head_dim / 2)."""
    head = shape.width // shape.heads
    frequency = shape.rope_theta ** (-torch.arange(0, head, 2).float() / head)
    angle = torch.outer(torch.arange(shape.context).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (2i, 2i + 1) of x (batch, heads, time, head_dim), as llama.cpp does for this architecture."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.attn_norm = nn.RMSNorm(shape.width, shape.norm_eps)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, shape.norm_eps)
        self.ffn_gate_up = nn.Linear(shape.width, 2 * shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.attn_qkv(self.attn_norm(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        attended = self.attn_output(attended.transpose(1, 2).reshape(batch, time, width))
        x = x + F.dropout(attended, self.dropout, self.training)
        gate, up = self.ffn_gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + F.dropout(self.ffn_down(F.silu(gate) * up), self.dropout, self.training)


class Network(nn.Module):
    """Token ids (batch, time) to logits (batch, time, vocab)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, shape.norm_eps)
        cos, sin = rotations(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        for block in self.blocks:
            nn.init.zeros_(block.attn_output.weight)
            nn.init.zeros_(block.ffn_down.weight)

    def forward(self, ids: Tensor) -> Tensor:
        time = ids.shape[1]
        x = self.token_embd(ids)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        return F.linear(self.output_norm(x), self.token_embd.weight)
