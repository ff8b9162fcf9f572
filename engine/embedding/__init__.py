"""Text embedding: workers that share one model, and the pool in front of them."""
