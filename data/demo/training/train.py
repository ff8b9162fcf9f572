"""Train the embedded story model from a folder of books and write it as GGUF.

    python data/demo/training/train.py CORPUS [--work FOLDER] [--export story.gguf]

Run again with the same --work folder to resume. Needs the packages of requirements.txt beside this file.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece as spm
import torch
import torch.nn.functional as F
from corpus import encode, read_books, train_tokenizer
from export import write_gguf
from network import Network, Shape
from torch import Tensor

HERE = Path(__file__).parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Data:
    """Training and held-out streams; batches are a pure function of the step, so that resuming repeats nothing."""

    def __init__(self, config: dict[str, Any], corpus: Path, work: Path) -> None:
        books = read_books(corpus)
        held_out = [text for name in config["held_out"] for text in books.pop(name)]
        texts = [text for book in books.values() for text in book]
        model = work / "tokenizer.model"
        if not model.exists():
            train_tokenizer(texts, config["vocab_size"], model)
        self.tokenizer = spm.SentencePieceProcessor(model_file=str(model))
        self.train, self.held_out = encode(self.tokenizer, texts), encode(self.tokenizer, held_out)
        self.held_out_bytes = sum(len(text.encode()) for text in held_out)
        self.context, self.batch, self.seed = config["context"], config["sequences_per_step"], config["seed"]

    @property
    def steps_per_epoch(self) -> int:
        return (len(self.train) - 1 - self.context) // self.context // self.batch

    def step(self, step: int) -> Tensor:
        """Ids of one step, shape (batch, context + 1): windows of a shuffled pass with its own random offset."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rng = np.random.default_rng((self.seed, epoch))
        offset = int(rng.integers(self.context))
        windows = rng.permutation((len(self.train) - 1 - offset) // self.context)
        starts = windows[index * self.batch : (index + 1) * self.batch] * self.context + offset
        return stack(self.train, starts, self.context)


def stack(stream: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64], length: int) -> Tensor:
    rows = np.stack([stream[start : start + length + 1] for start in starts]).astype(np.int64)
    return torch.from_numpy(rows).to(DEVICE)


@torch.no_grad()
def validate(network: Network, data: Data) -> tuple[float, float]:
    """Loss in nats a token and bits a byte over the held-out books, read in windows that overlap by one token."""
    network.eval()
    total, count = 0.0, 0
    starts = np.arange(0, len(data.held_out) - 1 - data.context, data.context)
    for chunk in np.array_split(starts, math.ceil(len(starts) / data.batch)):
        ids = stack(data.held_out, chunk, data.context)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = network(ids[:, :-1])
        total += float(F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum"))
        count += ids[:, 1:].numel()
    network.train()
    nats = total / count
    return nats, nats / math.log(2) * len(data.held_out) / data.held_out_bytes


def optimizers(network: Network, config: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the embedding and the norms."""
    matrices = [p for block in network.blocks for p in block.parameters() if p.dim() == 2]
    others = [p for p in network.parameters() if not any(p is matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, lr=config["muon_learning_rate"], weight_decay=config["weight_decay"], momentum=0.95),
        torch.optim.AdamW(others, lr=config["adamw_learning_rate"], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(step: int, config: dict[str, Any]) -> float:
    """Share of the peak learning rate: linear warm-up, a plateau, linear decay to zero."""
    warm = (step + 1) / config["warmup_steps"]
    cool = (config["steps"] - step) / config["decay_steps"]
    return max(0.0, min(1.0, warm, cool))


def train_step(network: torch.nn.Module, ids: Tensor, steppers: list[torch.optim.Optimizer], clip: float) -> float:
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = network(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    for optimizer in steppers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


class Training:
    """Network, optimizers and loss curve, kept in last.pt of the work folder; best.pt has the lowest held-out loss."""

    def __init__(self, network: Network, data: Data, config: dict[str, Any], work: Path) -> None:
        self.network, self.data, self.config, self.work = network, data, config, work
        self.optimizers = optimizers(network, config)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.curve: list[dict[str, float]] = []
        if (work / "last.pt").exists():
            state = torch.load(work / "last.pt", map_location=DEVICE, weights_only=True)
            network.load_state_dict(state["network"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.curve = state["curve"]

    def run(self) -> list[dict[str, float]]:
        """Train to the last step, or until the held-out loss has not fallen `patience` times; the loss curve."""
        first = int(self.curve[-1]["step"]) if self.curve else 0
        torch.manual_seed(self.config["seed"] + first)
        compiled = torch.compile(self.network)
        losses: list[float] = []
        began = time.monotonic()
        for step in range(first, self.config["steps"]):
            for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * rate(step, self.config)
            losses.append(train_step(compiled, self.data.step(step), self.optimizers, self.config["clip_norm"]))
            if (step + 1) % 10 == 0:
                speed = len(losses) * self.data.batch * self.data.context / (time.monotonic() - began)
                print(f"step {step + 1}  loss {np.mean(losses[-10:]):.3f}  {speed:,.0f} tokens/s", flush=True)
            if (step + 1) % self.config["validate_every"] == 0 or step + 1 == self.config["steps"]:
                self.note(step + 1, float(np.mean(losses[-self.config["validate_every"] :])))
                if self.has_stalled:
                    break
        return self.curve

    def note(self, step: int, train_loss: float) -> None:
        """Measure the held-out loss, add a point to the curve, save."""
        nats, bits = validate(self.network, self.data)
        tokens = step * self.data.batch * self.data.context
        point = {"step": step, "tokens": tokens, "train": train_loss, "held_out": nats, "bits_per_byte": bits}
        self.curve.append(point)
        print(json.dumps(point), flush=True)
        state = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "curve": self.curve,
        }
        names = ["last.pt", "best.pt"] if nats == min(p["held_out"] for p in self.curve) else ["last.pt"]
        for name in names:
            torch.save(state, self.work / "partial")
            (self.work / "partial").replace(self.work / name)

    @property
    def has_stalled(self) -> bool:
        """True when none of the last `patience` points is the best."""
        best = min(point["held_out"] for point in self.curve)
        return all(point["held_out"] > best for point in self.curve[-self.config["patience"] :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, default=Path("story-training"), help="checkpoints and tokenizer")
    parser.add_argument("--export", type=Path, help="GGUF file to write from the best checkpoint")
    parser.add_argument("--export-only", action="store_true", help="no training, only write the file")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config["seed"])
    data = Data(config, arguments.corpus, arguments.work)
    network = Network(Shape(**{name: config[name] for name in Shape.__dataclass_fields__})).to(DEVICE)
    parameters = sum(p.numel() for p in network.parameters())
    print(f"{parameters:,} parameters, {len(data.train):,} training and {len(data.held_out):,} held-out tokens")
    if not arguments.export_only:
        curve = Training(network, data, config, arguments.work).run()
        (arguments.work / "curve.json").write_text(json.dumps(curve, indent=1))
    if arguments.export:
        best = torch.load(arguments.work / "best.pt", map_location="cpu", weights_only=True)
        network.load_state_dict(best["network"])
        write_gguf(network.cpu(), data.tokenizer, arguments.export)


if __name__ == "__main__":
    main()
