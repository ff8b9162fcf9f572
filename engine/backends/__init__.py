"""Engines elsewhere: servers with an OpenAI-compatible API behind the Engine protocol."""
