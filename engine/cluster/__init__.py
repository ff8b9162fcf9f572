"""Cluster: files, memory and workers of the nodes of a Ray cluster, whose messages take connections of our own."""
