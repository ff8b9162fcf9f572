"""From a folder of books to token ids: chapters as documents, a SentencePiece vocabulary, two held-out books."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece as spm

HEADING = re.compile(r"[A-Z0-9'\"].{0,58}[A-Za-z0-9]")


def documents(book: str) -> Iterator[str]:
    """Chapters and tales of one book, headings left out, paragraphs joined by one newline."""
    kept: list[str] = []
    for paragraph in re.split(r"\n\s*\n", book.strip()):
        lines = [line.strip() for line in paragraph.split("\n")]
        if len(lines) == 1 and HEADING.fullmatch(lines[0]):
            if kept:
                yield "\n".join(kept)
            kept = []
        else:
            kept.extend(lines)
    if kept:
        yield "\n".join(kept)


def read_books(folder: Path) -> dict[str, list[str]]:
    """Documents of every book of the folder, by file stem; raises ValueError for an empty folder."""
    books = {path.stem: list(documents(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.txt"))}
    if not books:
        raise ValueError(f"no .txt books in {folder}")
    return books


def train_tokenizer(texts: list[str], vocab_size: int, out: Path) -> None:
    """Write OUT.model: BPE with byte fallback, digits apart, spaces kept, the newline as a piece of its own."""
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts for line in text.split("\n")),
        model_prefix=str(out.with_suffix("")),
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=1.0,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["\n"],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=1,
    )


def encode(tokenizer: spm.SentencePieceProcessor, texts: list[str]) -> npt.NDArray[np.uint16]:
    """One stream of ids, shape (n,): each document between BOS and EOS."""
    ids: list[int] = []
    for text in texts:
        ids += [tokenizer.bos_id(), *tokenizer.encode(text), tokenizer.eos_id()]
    return np.array(ids, dtype=np.uint16)
