"""Child program that loads a model folder's tokenizer without its weights; requests as for engine.llama.tokenizer."""

import socket

from engine.llama.tokenizer import serve_tokenizer
from engine.programs.folder_vocabulary import FolderVocabulary


def main(end: socket.socket, path: str) -> None:
    """Answer requests; if the folder cannot be read, the first answer is that error."""
    serve_tokenizer(end, lambda: FolderVocabulary(path))
