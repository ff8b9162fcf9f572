"""Import of two older log formats for timings and candidates."""

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.exchange.llama_bench_files import read_run
from engine.exchange.logs import read_candidate_log, read_timing_log

BLOCK = """### MODEL_NUM: {model} | ITER: {iteration} ###
time_load: {load}
time_infer: {infer}
time_script: 23.3
comp_tokens: {tokens}
N_THREADS: {threads}
MAX_TOKENS: 50
model_fn: {name}
output: Mars and Venus.

time_load: this line belongs to the output

"""


def block(iteration: int = 1, *, model: int = 1, load: object = 0.2, infer: object = 11.4, **values: object) -> str:
    values = {"tokens": 50, "threads": 3, "name": "llama-2-7b.Q4_K_M.gguf"} | values
    return BLOCK.format(model=model, iteration=iteration, load=load, infer=infer, **values)


CANDIDATES = """[1699000000]  -  302: '          of' (0.503)
[1699000000]  -  28705: '            ' (0.294)
[1699000000]  -  684: '       about' (0.047)
[1699000000]  -  10870: ' approximately' (0.009)
[1699000000]  -  13: '           
' (0.001)
[1699000000] sampled token:   302: ' of'
"""  # noqa: W291 - the text of a token is a line break


def test_blocks_become_cells_and_samples() -> None:
    text = (
        block(1, load=11.7, infer=11.5) + block(2) + block(3, infer=3.9, tokens=11) + block(1, model=2, name="m.gguf")
    )
    run = read_run(text.encode(), "notes")
    assert (run.origin, run.name) == ("log", "notes")
    assert [cell.label for cell in run.cells] == ["llama-2-7b.Q4_K_M.gguf", "m.gguf"]
    assert run.cells[0].facts == {"load_cold_s": 11.7, "load_warm_s": 0.2}
    assert run.cells[0].settings["layout"] == "1x3"
    mine = run.samples[run.samples["cell"] == 0]
    assert mine["end_to_end_per_s"] == pytest.approx([50 / 11.5, 50 / 11.4, 11 / 3.9])
    assert mine["e2e_s"] == pytest.approx([11.5, 11.4, 3.9])
    assert np.isnan(mine["decode_per_s"]).all()
    assert run.samples["position"].tolist() == [0, 1, 2, 3]


def test_the_same_model_with_other_threads_is_another_cell() -> None:
    run = read_timing_log(block(1) + block(2, threads="None"))
    assert [cell.label.rpartition(" · ")[0] for cell in run.cells] == [
        "llama-2-7b.Q4_K_M.gguf · 3 threads",
        "llama-2-7b.Q4_K_M.gguf · None threads",
    ]
    assert "layout" not in run.cells[1].settings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block(1) + block(2).replace("comp_tokens: 50\n", ""), "line 13: this block has no comp_tokens"),
        (block(1, load="soon"), "line 1: time_load = 'soon': must be a number"),
        (block(1, load="nan"), "time_load"),
        (block(1, load=-1), "time_load"),
        (block(1, infer=0), "measures nothing"),
        (block(1, tokens="5.5"), "comp_tokens"),
        (block(1) + "### MODEL_NUM: x | ITER: 1 ###\n", "line 13: not a header"),
        (block(1).replace("N_THREADS", "N_TREADS"), "line 6: 'N_TREADS: 3': neither"),
    ],
)
def test_a_malformed_block_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_timing_log(text)


def test_candidates_of_a_step_are_read_with_their_texts() -> None:
    (step,) = read_candidate_log(CANDIDATES)
    assert step.at == 1699000000
    assert [one.id for one in step.candidates] == [302, 28705, 684, 10870, 13]
    assert [one.text for one in step.candidates] == [" of", " ", " about", " approximately", " \n"]
    assert [one.p for one in step.candidates] == [0.503, 0.294, 0.047, 0.009, 0.001]
    assert step.sampled is not None
    assert (step.sampled.id, step.sampled.text, step.sampled.p) == (302, " of", 0.503)


def test_the_sampled_line_tells_the_text_that_the_padding_hides() -> None:
    text = CANDIDATES.replace("302: ' of'", "302: 'of'")
    (step,) = read_candidate_log(text)
    assert step.candidates[0].text == "of"


def test_several_steps_and_an_open_one() -> None:
    steps = read_candidate_log(CANDIDATES + "\n" + CANDIDATES + CANDIDATES.splitlines()[0])
    assert [len(step.candidates) for step in steps] == [5, 5, 1]
    assert steps[2].sampled is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: no candidate line"),
        (CANDIDATES + "something else\n", "line 8: 'something else': neither"),
        (CANDIDATES.replace("0.503", "5.03"), "line 1: 5.03 is not a probability"),
        (CANDIDATES.replace("(0.047)", "(much)"), "line 3"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_candidate_log(text)


@pytest.mark.parametrize("number", ["²", "٣", "9" * 400, "-1", "1e3", ""])
def test_odd_numbers_of_threads_and_tokens_are_left_out(number: str) -> None:
    text = block(1).replace("N_THREADS: 3", f"N_THREADS: {number}").replace("MAX_TOKENS: 50", f"MAX_TOKENS: {number}")
    assert number in text
    (cell,) = read_timing_log(text).cells
    assert not {"layout", "num_generated"} & cell.settings.keys()


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5_000, "²", "nan"])
def test_an_odd_number_of_generated_tokens_is_refused(number: str) -> None:
    text = block(1).replace("comp_tokens: 50", f"comp_tokens: {number}")
    with pytest.raises(ConfigError, match="comp_tokens"):
        read_timing_log(text)
