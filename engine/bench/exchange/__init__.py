"""Import and export of runs: llama-bench's formats and logs."""
