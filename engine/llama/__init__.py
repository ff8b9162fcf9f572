"""Binding to llama.cpp for one model per process; the only package that imports llama_cpp."""
