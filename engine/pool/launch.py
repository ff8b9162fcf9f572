"""The environment of a worker is that of every program with llama.cpp in it."""

from engine.llama.launch import environment_for as environment_for
