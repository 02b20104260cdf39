import dp_accounting
import pytest

from tacit.errors import BadInput
from tacit.privacy.accounting import price
from tacit.privacy.accounting.events import IntegerSumDpEvent, RoundedGaussianDpEvent, SideDpEvent
from tacit.privacy.accounting.price import MOST_SPLITS

STEP = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 20
)
QUERY, COMMON = RoundedGaussianDpEvent(2.0), RoundedGaussianDpEvent(20.0)


def epsilon(*releases):
    return price.epsilon(price.compose((event, 1) for event in releases), delta=1e-5)


def train(event, split="s", side="trained on"):
    inner, times = price.counted(event)
    return dp_accounting.SelfComposedDpEvent(SideDpEvent(split, side, inner), times)


def held(event, split="s"):
    return train(event, split, "held out")


def test_a_record_pays_for_its_own_side_and_for_what_is_about_everybody():
    both = epsilon(COMMON, train(STEP), held(QUERY))
    assert both == max(epsilon(COMMON, STEP), epsilon(COMMON, QUERY))
    assert both < epsilon(COMMON, STEP, QUERY)


def test_releases_about_one_side_still_add_up():
    assert epsilon(held(QUERY), held(QUERY)) == epsilon(QUERY, QUERY) > epsilon(held(QUERY), train(QUERY))


def test_sides_of_different_splits_are_no_refuge_for_a_record_may_be_on_both():
    assert epsilon(train(STEP, "a"), held(QUERY, "b")) == epsilon(STEP, QUERY)
    assert epsilon(STEP, held(QUERY)) == epsilon(STEP, QUERY)  # a release about all records
    crossed = epsilon(train(STEP, "a"), held(QUERY, "a"), train(STEP, "b"), held(QUERY, "b"))
    assert crossed == max(epsilon(STEP, STEP), epsilon(STEP, QUERY), epsilon(QUERY, QUERY))


def test_of_very_many_splits_everything_is_added():
    many = [side(QUERY, str(n)) for n in range(MOST_SPLITS + 1) for side in (train, held)]
    assert epsilon(*many) == epsilon(*[QUERY] * len(many))


def test_sides_survive_the_words_of_a_ledger_and_keep_their_price():
    for event in (train(STEP), held(QUERY)):
        read = price.from_text(price.to_text(event))
        assert read == event
        assert epsilon(read) == epsilon(event)
    with pytest.raises(BadInput):
        price.from_text('{"event": "one-side", "split": "s", "side": "x", "of": "no-such", "steps": 1}')
    with pytest.raises(BadInput):
        price.from_text(
            '{"event": "one-side", "side": "x", "of": "rounded-gaussian", "noise_multiplier": 1.0, "steps": 1}'
        )


@pytest.mark.parametrize(
    "inner",
    [
        SideDpEvent("s", "x", QUERY),
        STEP,
        IntegerSumDpEvent("skellam", 900.0, 4, 9, 20, slack=1e-12),
        dp_accounting.SampledWithoutReplacementDpEvent(50, 10, dp_accounting.GaussianDpEvent(1.0)),
    ],
)
def test_what_has_no_price_on_a_side_is_refused(inner):
    with pytest.raises(BadInput):
        SideDpEvent("s", "x", inner)


def test_the_bound_that_is_named_for_sampled_steps_is_theirs_and_not_that_of_a_dearer_query():
    composition = price.compose([(train(STEP), 1), (held(QUERY), 1)])
    trained, asked = epsilon(train(STEP)), epsilon(held(RoundedGaussianDpEvent(0.5)))
    dearer = price.compose([(train(STEP), 1), (held(RoundedGaussianDpEvent(0.5)), 1)])
    assert asked > trained == epsilon(train(STEP), held(QUERY))
    words = "PLD (connect the dots, numerical error bounded) for records trained on and GDP (closed form) for records held out"
    assert {price.method(one, delta=1e-5) for one in (composition, dearer)} == {words}


def test_sides_with_one_bound_have_it_named_once():
    both = price.compose([(train(RoundedGaussianDpEvent(3.0)), 1), (held(QUERY), 1)])
    assert price.method(both, delta=1e-5) == "GDP (closed form)"
    assert price.method(price.compose([(train(STEP), 1), (COMMON, 1)]), delta=1e-5).startswith("PLD")
