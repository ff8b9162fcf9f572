"""External engines: servers with an OpenAI-compatible API behind the Engine protocol."""
