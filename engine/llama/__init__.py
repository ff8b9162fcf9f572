"""One process, one model: the only place that imports llama_cpp."""
