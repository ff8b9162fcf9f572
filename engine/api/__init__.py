"""The HTTP side of the workbench, as plain ASGI: who may ask, and under which headers."""
