"""Models on other machines: files, memory and workers of the nodes of a cluster."""
