"""Every kind of fault, and how often it is drawn beside the others; each lies in a file named for it."""

import random
from collections.abc import Callable
from typing import NamedTuple

from tests.faults import (
    disks,
    hostile_files,
    hostile_links,
    hostile_models,
    hostile_prompts,
    hostile_requests,
    killed,
    races,
    readers,
    stale_pages,
    two_owners,
)
from tests.faults.world import World


class Kind(NamedTuple):
    """A fault, and its weight among the others: what takes long is drawn less often."""

    fault: Callable[[World, random.Random], None]
    weight: float


KINDS = {
    "kill-worker": Kind(killed.kill_worker, 4),
    "stop-worker": Kind(killed.stop_worker, 1),
    "kill-child": Kind(killed.kill_child, 3),
    "kill-app": Kind(killed.kill_app, 2),
    "kill-writer": Kind(killed.kill_writer, 1),
    "end-app": Kind(killed.end_app, 2),
    "full-disk": Kind(disks.full_disk, 2),
    "read-only": Kind(disks.read_only, 2),
    "slow-reader": Kind(readers.slow_reader, 4),
    "request": Kind(hostile_requests.hostile_request, 5),
    "frames": Kind(hostile_requests.hostile_frames, 5),
    "paste": Kind(hostile_files.hostile_paste, 4),
    "file": Kind(hostile_files.hostile_file, 4),
    "archive": Kind(hostile_files.hostile_archive, 4),
    "inbox": Kind(hostile_files.inbox, 2),
    "link": Kind(hostile_links.hostile_link, 4),
    "question": Kind(hostile_links.hostile_question, 3),
    "model": Kind(hostile_models.hostile_model, 2),
    "template": Kind(hostile_models.hostile_template, 2),
    "grammar": Kind(hostile_prompts.hostile_grammar, 4),
    "prompt": Kind(hostile_prompts.hostile_prompt, 4),
    "race": Kind(races.race, 4),
    "stale-page": Kind(stale_pages.stale_page, 3),
    "second-workbench": Kind(two_owners.second_workbench, 1),
    "command-beside": Kind(two_owners.command_beside, 1),
}
