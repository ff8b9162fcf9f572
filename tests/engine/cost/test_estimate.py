import math
from typing import Any

import pytest

from engine.cost import CostJob, Price, estimate, estimates, ktokens_per_usd
from engine.errors import ConfigError
from tests.engine.cost.maker import make_rate, speed

PRICE = Price(machine="desk", usd_per_h=0.5)


def job(**values: Any) -> CostJob:
    return CostJob(**{"documents": 10, "tokens_per_document": 3600, "output_tokens": 360} | values)


def test_prompt_and_output_are_costed_apart() -> None:
    made = estimate(job(), make_rate(prefill=speed(100, 90, 120), generation=speed(10, 8, 12)), PRICE)
    prompt, output = made.parts
    assert prompt.hours == pytest.approx((36_000 / 3600 / 100, 36_000 / 3600 / 120, 36_000 / 3600 / 90, 8))
    assert output.hours == pytest.approx((0.1, 3600 / 3600 / 12, 0.125, 8))
    assert made.hours.value == pytest.approx(0.2)
    assert made.hours.low == pytest.approx(prompt.hours.low + output.hours.low)
    assert made.hours.high == pytest.approx(prompt.hours.high + output.hours.high)
    assert made.dollars == pytest.approx((0.1, made.hours.low / 2, made.hours.high / 2, 8))
    assert made.assumptions == ()


def test_as_the_notes_counted_all_tokens_are_generated() -> None:
    made = estimate(job(), make_rate(prefill=speed(100)), PRICE, counted_as="notes")
    (part,) = made.parts
    assert part.amount == 39_600
    assert made.hours.value == 1.1
    assert math.isnan(made.hours.low)


def test_the_notes_hours_have_three_digits_before_they_are_priced() -> None:
    made = estimate(CostJob(), make_rate(per_s=18.67), PRICE, counted_as="notes")
    assert made.hours.value == 11.2
    assert made.dollars.value == 5.6
    assert any("three digits" in assumption for assumption in made.assumptions)
    exact = estimate(CostJob(), make_rate(per_s=18.67, prefill=speed(18.67)), PRICE)
    assert exact.hours.value == pytest.approx(750_000 / 18.67 / 3600)


def test_an_unknown_prefill_lies_between_no_time_and_generating_as_many() -> None:
    made = estimate(job(), make_rate(generation=speed(10, 8, 12)), PRICE)
    assert made.parts[0].speed is None
    assert math.isnan(made.hours.value)
    assert made.hours.low == pytest.approx(3600 / 3600 / 12)
    assert made.hours.high == pytest.approx(39_600 / 3600 / 8)
    assert made.dollars.high == pytest.approx(made.hours.high / 2)
    assert made.assumptions == ("prefill speed not measured: between no time and that of generating as many tokens",)
    noted = estimate(job(), make_rate(generation=speed(10)._replace(provenance="noted")), PRICE)
    assert (noted.hours.low, noted.hours.high) == pytest.approx((0.1, 1.1))
    assert "prefill speed not noted" in noted.assumptions[0]


def test_utilisation_stretches_the_work_and_start_up_is_paid_once() -> None:
    made = estimate(job(utilisation=0.5, startup_s=360), make_rate(prefill=speed(100, 90, 110)), PRICE)
    assert made.hours.value == pytest.approx(0.2 / 0.5 + 0.1)
    assert made.hours.low == pytest.approx((10 / 110 + 0.1) / 0.5 + 0.1)
    assert made.assumptions == ("50 % of the paid time is work", "6 min of start-up, paid once")


def test_embedding_takes_its_own_speed() -> None:
    sentences = CostJob(documents=0, embedding_sentences=7200)
    made = estimate(sentences, make_rate(embedding=speed(2)), PRICE)
    assert made.hours.value == 1
    assert [part.unit for part in made.parts] == ["sentences"]
    unknown = estimate(sentences, make_rate(), PRICE)
    assert math.isnan(unknown.hours.value)
    assert unknown.assumptions == ("embedding speed of this machine unknown",)


@pytest.mark.parametrize(("concurrency", "hours"), [(0, 0.2), (4, 0.2), (2, 0.3), (1, 0.5), (64, 0.2)])
def test_concurrency_never_promises_more_than_was_measured(concurrency: int, hours: float) -> None:
    rate = make_rate(prefill=speed(100), num_streams=4)
    made = estimate(job(concurrency=concurrency), rate, PRICE)
    assert made.hours.value == pytest.approx(hours)
    output = made.parts[1].speed
    assert output is not None
    assert output.provenance == ("measured here" if concurrency in (0, 4) else "assumed")
    assert output.remark.startswith(f"{concurrency} at once have" if concurrency not in (0, 4) else "")


def test_without_a_price_there_are_hours_alone() -> None:
    made = estimate(job(), make_rate(prefill=speed(100)))
    assert made.hours.value == pytest.approx(0.2)
    assert math.isnan(made.dollars.value)
    assert math.isnan(made.ktokens_per_usd.value)


def test_each_price_of_a_machine_makes_an_estimate() -> None:
    prices = [Price(machine="desk", region=region, usd_per_h=usd) for region, usd in (("east", 2), ("west", 1))]
    made = estimates(job(), [make_rate("desk"), make_rate("lap")], prices)
    assert [(one.rate.machine, one.price and one.price.region) for one in made] == [
        ("desk", "west"),
        ("desk", "east"),
        ("lap", None),
    ]


def test_tokens_for_a_dollar() -> None:
    assert ktokens_per_usd(make_rate(generation=speed(10, 9, 12)), PRICE) == pytest.approx((72, 64.8, 86.4, 8))


def test_words_are_turned_into_tokens_unless_tokens_are_given() -> None:
    words = CostJob(documents=100, words_per_document=5000)
    assert (words.num_prompt, words.is_from_words) == (750_000, True)
    assert "1.5 tokens per word" in estimate(words, make_rate(), PRICE).assumptions
    tokens = CostJob(documents=100, tokens_per_document=10, output_tokens=5)
    assert (tokens.num_prompt, tokens.num_output, tokens.is_from_words) == (1000, 500, False)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"documents": -1}, "documents = -1"),
        ({"documents": 0}, "the job is empty"),
        ({"words_per_document": math.nan}, "words_per_document = nan"),
        ({"words_per_document": math.inf}, "words_per_document = inf"),
        ({"utilisation": 0}, "utilisation = 0"),
        ({"utilisation": 1.1}, "utilisation"),
        ({"startup_s": -1}, "startup_s"),
        ({"documents": 10**12, "words_per_document": 1e9}, "up to 1e\\+15"),
        ({"dokuments": 1}, "did you mean documents"),
    ],
)
def test_senseless_jobs_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CostJob.from_dict(values)
