"""The command line: `python -m engine generate --prompt "Once upon a time" --top-k 5`."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from engine.arguments import MEASURING, Arguments, parse
from engine.errors import EngineError, HistoryError
from engine.jsonable import completion_to_dict
from engine.models.library import embedded_model
from engine.pool.job import Job
from engine.pool.pool import Pool
from engine.results import TokenStep
from engine.settings import Settings
from engine.table import printable, table

ERROR, INTERRUPTED, NO_READER = 2, 130, 141


def main(words: list[str] | None = None) -> int:
    """Run one command; gives the exit status: 0, 2 for an error told on standard error, 130 after Ctrl+C."""
    words = sys.argv[1:] if words is None else words
    try:
        # Each command brings only what it needs.
        match words:
            case [command, *_] if command in MEASURING:
                from engine import bench_commands

                bench_commands.run(words)
            case ["cost", *_]:
                from engine import cost_commands

                cost_commands.run(words)
            case ["history", *_]:
                from engine import history_commands

                history_commands.run(words)
            case _:
                generate(parse(words))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more, as after `| head`; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    return 0


def generate(arguments: Arguments) -> None:
    """Complete one prompt, print it as asked, keep it. Raises EngineError."""
    settings = Settings.from_environment()
    model = arguments.model or settings.model or embedded_model()
    with Pool(model, **arguments.pool.to_dict()) as pool:
        created_at = datetime.now(UTC)
        job = pool.submit(arguments.prompt, arguments.sampling, **arguments.request.to_dict())
        show(job, arguments)
        if arguments.is_kept:
            from engine.keeping import keep  # with it comes DuckDB, which nothing before needs

            try:
                keep(job, pool, created_at, settings)
            except HistoryError as error:
                print(f"not kept: {error}", file=sys.stderr)


def show(job: Job, arguments: Arguments) -> None:
    """Print the job as text while it comes, as JSON, as a table of candidates or as plain text."""
    if arguments.is_stream:
        stream(job)
        return
    completion = job.result()
    if arguments.is_json:
        print(json.dumps(completion_to_dict(completion), ensure_ascii=False, allow_nan=False, indent=1))
    elif arguments.request.top_k or arguments.request.prompt_logprobs:
        print(table(completion))
    else:
        print(printable(completion.text, is_terminal=sys.stdout.isatty()))


def stream(job: Iterable[TokenStep]) -> None:
    """Print the text of each step when it is decoded, and a newline at the end, also after Ctrl+C."""
    is_terminal = sys.stdout.isatty()
    with contextlib.ExitStack() as at_end:
        at_end.callback(print)
        for step in job:
            print(printable(step.text, is_terminal=is_terminal), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
