"""Tokenizer of the loaded model, as programs that score texts ask for it."""

from typing import Any

from engine.protocol import Engine
from engine.workbench.model_manager import ModelState

EOS_KEY = "tokenizer.ggml.eos_token_id"


def tokenizer_info(engine: Engine, state: ModelState) -> dict[str, Any]:
    """Return the special tokens by name, None for one that the model has not, and the chat template, None likewise."""
    vocabulary, file = engine.vocabulary, state.file
    eos = None if file is None else file.metadata.get(EOS_KEY)
    if not (isinstance(eos, int) and 0 <= eos < len(vocabulary)):
        eos = next(iter(vocabulary.end_tokens), None)
    return {
        "bos_token": None if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        "eos_token": None if eos is None else vocabulary.text(eos),
        "add_bos_token": vocabulary.add_bos,
        "chat_template": (file.chat_template if file is not None else "") or None,
        "model_max_length": engine.capabilities.n_ctx,
    }
