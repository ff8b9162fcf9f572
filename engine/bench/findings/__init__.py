"""What samples say: medians and verdicts, the answers to the four questions, limits, divergence."""
