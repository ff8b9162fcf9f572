"""Import of foreign files in a process of its own, and export of runs as rows of llama-bench."""
