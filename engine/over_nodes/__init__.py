"""Work that runs whole on each node of a cluster: benchmarks, and the embedding of corpora."""
