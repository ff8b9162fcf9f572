"""The model that ships, as a file with a chat template."""

import subprocess
import sys
from pathlib import Path

from engine.models import embedded_model

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"
CLOSING = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}[assistant]"
)
"""A template that ends each answer with the token that ends a text, and writes answers as they are."""


def write_chat_model(path: Path, template: str = TEMPLATE) -> Path:
    """Write a copy of the model that carries this chat template; return its path."""
    program = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", template]
    subprocess.run([*program, embedded_model(), path], check=True, capture_output=True, timeout=120)
    return path
