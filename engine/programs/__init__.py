"""Worker programs of other engines than llama.cpp, each in a child process, over the messages of engine.pool."""
