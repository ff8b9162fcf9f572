"""The app with few files: as `python -m streamlit`, in a process that may open no more than 256, for good."""

import resource

from streamlit.web import cli

NUM_FILES = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))
    cli.main(prog_name="streamlit")
