"""Foreign files imported in a process of its own, runs written as rows of llama-bench, files of prompts and answers."""
