"""`python -m engine generate`: completes one prompt, prints the result and stores it; or those of a file."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from engine.calls import complete_file
from engine.commands.arguments import Arguments, parse
from engine.commands.printing import print_json, print_text
from engine.commands.table import printable, table
from engine.errors import HistoryError
from engine.jobs import Job
from engine.jsonable import completion_to_dict
from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.settings import Settings
from engine.steps import TokenStep
from engine.units import counted
from engine.validation import at_most
from engine.watched_words import MAX_WORDS, single_tokens


def run(words: Sequence[str]) -> None:
    """Complete one prompt, or those of a file.

    Raises EngineError, SystemExit for unknown flags, KeyboardInterrupt after Ctrl+C.
    """
    arguments = parse(words)
    settings = Settings.from_environment()
    model = arguments.model or settings.model or embedded_model()
    if arguments.prompts:
        answer_file(arguments, model)
    else:
        generate(arguments, model, settings)


def answer_file(arguments: Arguments, model: str | Path) -> None:
    """Complete the prompts of a file into another one, showing progress. Raises EngineError."""
    try:
        done = complete_file(
            arguments.prompts,
            arguments.out,
            arguments.sampling,
            model=model,
            cluster=arguments.cluster,
            chat=arguments.is_chat,
            system=arguments.system,
            progress=True,
            **arguments.pool.to_dict(),
            **arguments.request.to_dict(),
        )
    except KeyboardInterrupt:
        print(f"stopped; what is answered is in {arguments.out}, and the same command continues", file=sys.stderr)
        raise
    parts = [f"{arguments.out}: {counted(done.num_answered, 'answer')}"]
    parts += [f"{done.num_before:,} of them from before"] if done.num_before else []
    parts += [f"{done.num_failed:,} of them an error"] if done.num_failed else []
    print_text(", ".join(parts))


def generate(arguments: Arguments, model: str | Path, settings: Settings) -> None:
    """Complete one prompt, print the result in the requested form and store it. Raises EngineError."""
    with Pool(model, cluster=arguments.cluster, **arguments.pool.to_dict()) as pool:
        created_at = datetime.now(UTC)
        job, text = submit(pool, arguments)
        show(job, arguments)
        if arguments.is_kept:
            from engine.commands.keeping import keep  # imports DuckDB, which is not needed before

            try:
                keep(job, pool, created_at, settings, prompt=text, messages=arguments.messages)
            except HistoryError as error:
                print(f"not saved: {error}", file=sys.stderr)


def submit(pool: Pool, arguments: Arguments) -> tuple[Job, str]:
    """Submit the prompt, as text or as a chat; return the job and its text. Raises EngineError."""
    text, ids = pool.render_chat(arguments.messages) if arguments.is_chat else (arguments.prompt, None)
    watched = tuple(single_tokens(pool, word) for word in at_most(MAX_WORDS, "--watch: {} words", arguments.watched))
    request = replace(arguments.request, watched=watched)
    return pool.submit(ids or text, arguments.sampling, **request.to_dict()), text


def show(job: Job, arguments: Arguments) -> None:
    """Print the job's result as streamed text, as JSON, as a table of candidates or as plain text."""
    if arguments.is_stream:
        stream(job)
        return
    completion = job.result()
    if arguments.is_json:
        print_json(completion_to_dict(completion))
    elif arguments.request.top_k or arguments.request.prompt_logprobs or arguments.watched:
        print(table(completion))
    else:
        print_text(completion.text)


def stream(job: Iterable[TokenStep]) -> None:
    """Print the text of each step as it is decoded, and a newline at the end, also after Ctrl+C."""
    is_terminal = sys.stdout.isatty()
    with contextlib.ExitStack() as at_end:
        at_end.callback(print)
        for step in job:
            print(printable(step.text, is_terminal=is_terminal), end="", flush=True)
