"""Property inference: coins that sizes do not give away, updates that are told apart, properties that are none."""

import numpy as np
import pytest
import torch

from tacit.data.dataset import Dataset
from tacit.data.encoder import Category, Encoder, Number
from tacit.engine.assemble import build
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.lab.attacks import property as module
from tacit.lab.attacks._runs import pooled, whole
from tacit.lab.attacks.property import GAMES, Wanted, dealt

SMALL = Experiment(name="small", data={"clients": 8, "examples_per_client": 60}, train={"rounds": 3, "local_steps": 10})


@pytest.fixture(scope="module")
def parts():
    return build(whole(SMALL))


def wards():
    """Rows with a number and a column of declared values."""
    columns = (Number("age", limits=(0.0, 100.0)), Category("ward", values=("a", "b", "c")))
    encoder = Encoder(classes=("no", "yes"), shape=(4,), columns=columns)
    x = torch.tensor([[0.1, 1, 0, 0], [0.2, 0, 1, 0], [0.3, 0, 1, 0]])
    y = torch.tensor([0, 1, 0])
    return Dataset("wards", x, y, x, y, ("no", "yes"), encoder=encoder)


def test_a_property_is_a_group_of_classes_or_a_value_of_a_column():
    data = wards()
    assert Wanted(("yes",)).of(data, data.x, data.y).tolist() == [False, True, False]
    assert Wanted(column="ward", value="b").of(data, data.x, data.y).tolist() == [False, True, True]
    for wrong, words in (
        (Wanted(("maybe",)), "with.classes"),
        (Wanted(column="ward", value="d"), "with.value"),
        (Wanted(column="age", value="30"), "column of declared values"),
        (Wanted(column="wrd", value="b"), "Did you mean 'ward'"),
    ):
        with pytest.raises(BadInput, match=words):
            wrong.of(data, data.x, data.y)
    for options in ({"column": "ward"}, {"value": "b"}, {"classes": [1], "column": "ward", "value": "b"}):
        with pytest.raises(BadInput, match="Say which rows have the property"):
            attacks.load("property", **options)


def test_a_coin_moves_rows_and_not_their_number_and_mirrors_turn_every_coin(parts):
    having = Wanted(("3",)).of(parts.dataset, parts.population.x, parts.population.y)
    games = [dealt(parts.population, having, seed=0, number=number) for number in range(2)]
    assert (games[0][1] + games[1][1] == 1).all()
    assert games[0][1].sum() == 4
    cuts = parts.population.offsets
    for index in range(8):
        rows = slice(int(cuts[index]), int(cuts[index + 1]))
        assert games[0][0][rows].sum() == games[1][0][rows].sum()
        for mask, coins in games:
            assert (mask & having)[rows].any() == (coins[index] == 1)
    only = np.arange(len(having)) < 60  # all of the first client's rows, and nobody else's: none of them can play
    mask, coins = dealt(parts.population, only, seed=0, number=0)
    assert mask.all()
    assert not np.isfinite(coins).any()


def test_a_game_trains_the_rows_that_were_dealt(parts):
    having = Wanted(("3",)).of(parts.dataset, parts.population.x, parts.population.y)
    game = build(pooled(SMALL, GAMES, number=1, classes=["3"]))
    mask, coins = dealt(parts.population, having, seed=0, number=1)
    assert len(game.population.y) == mask.sum()
    assert [bool((game.population[index].y == 3).any()) for index in range(8)] == (coins == 1).tolist()


def test_updates_that_differ_in_one_direction_are_told_apart_and_equal_ones_are_not():
    rng, direction = np.random.default_rng(0), np.zeros(500)
    direction[:20] = 1.0
    truth = np.arange(80) % 2 == 1
    made, seen = rng.normal(size=(80, 500)), rng.normal(size=(400, 500))
    scores = module.told_apart(
        made + np.outer(truth, direction), truth, seen + np.outer(np.arange(400) < 200, direction)
    )
    assert np.mean(scores[:200, None] > scores[None, 200:]) > 0.9
    blind = module.told_apart(made, truth, seen)
    assert 0.4 < np.mean(blind[:200, None] > blind[None, 200:]) < 0.6


def test_a_property_that_no_row_or_every_row_or_nobody_has_beside_other_rows_is_refused(tmp_path):
    shards = {"data": {"clients": 2, "partition": "shards", "shards_per_client": 1}}
    apart = Experiment(**SMALL.model_dump(exclude_none=True) | shards)
    for experiment, classes, words in (
        (SMALL, ["11"], "with.classes"),
        (SMALL, list(range(10)), "Every row"),
        (apart, [0], "have rows with and without the property class 0"),
    ):
        with pytest.raises(BadInput, match=words):
            attacks.attack("property", experiment, out=tmp_path, options={"classes": classes})


def test_updates_without_noise_give_a_group_of_classes_away_and_a_game_is_not_played_twice(tmp_path):
    how = {"out": tmp_path, "options": {"classes": [0, 3, 6], "looks": 2, "auxiliary": 12}}
    found = attacks.attack("property", SMALL, **how)
    assert found.number("AUC", "all looks").value > 0.75
    assert found.number("AUC", "round 3").low is not None
    (tmp_path / "attack-property.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert attacks.attack("property", SMALL, **how).estimates == found.estimates
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")} == before


def test_sums_show_no_clients_update(tmp_path):
    privacy = {"kind": "distributed", "epsilon": 8.0}
    experiment = Experiment(**SMALL.model_dump(exclude_none=True) | {"privacy": privacy})
    with pytest.raises(BadInput, match="Nobody sees single updates"):
        attacks.attack("property", experiment, out=tmp_path, options={"classes": [3], "auxiliary": 2, "looks": 1})
