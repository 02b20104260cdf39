"""Intervals over test rows: all draws at once agree with one draw after the other, and they are as wide as they should be."""

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    precision_recall_fscore_support,
    r2_score,
    recall_score,
    roc_auc_score,
)

from tacit import plugin
from tacit.parts import metrics
from tacit.parts.metrics import Answers, columns, per_class

ROWS = 60


def answers(kind, *, ties=False, rows=ROWS, classes=4):
    rng = np.random.default_rng(3)
    if kind in ("regression", "two numbers"):
        targets = rng.normal(size=(rows, 2) if kind == "two numbers" else rows)
        return Answers("regression", targets, targets.reshape(rows, -1) + rng.normal(size=(rows, targets.size // rows)))
    if kind == "multilabel":
        targets = (rng.random((rows, 3)) < 0.4).astype(np.float32)
        scores = np.clip(0.3 * targets + 0.6 * rng.random((rows, 3)), 0, 1)
        return Answers(kind, targets, scores.round(1) if ties else scores)
    classes = 2 if kind == "binary" else classes
    targets = rng.integers(0, classes, rows)
    scores = rng.random((rows, classes)) + 0.3 * np.eye(classes)[targets]
    scores = scores.round(1) if ties else scores
    names = tuple("abcdefghij"[:classes])
    if kind != "tokens":
        return Answers(kind, targets, scores / scores.sum(1, keepdims=True), names)
    row = np.sort(rng.integers(0, rows // 4, rows))
    row = np.unique(row, return_inverse=True)[1]
    return Answers(kind, targets, scores / scores.sum(1, keepdims=True), names, row)


OF = {
    "classification": ("accuracy", "balanced-accuracy", "f1", "log-loss", "brier", "auroc", "average-precision"),
    "binary": ("accuracy", "balanced-accuracy", "f1", "log-loss", "brier", "auroc", "average-precision"),
    "multilabel": ("accuracy", "f1", "brier", "auroc", "average-precision"),
    "regression": ("mae", "rmse", "r2"),
    "two numbers": ("mae", "rmse", "r2"),
    "tokens": ("perplexity", "accuracy"),
}


def recall_of(found):
    present = sorted(set(found.targets.tolist()))
    return recall_score(found.targets, found.labels, labels=present, average="macro", zero_division=0)


def f1_of(found):
    two = found.kind != "multilabel" and found.predictions.shape[1] == 2
    how = {"average": "binary"} if two else {"average": "macro", "labels": list(found.classes)}
    return f1_score(found.targets, found.labels, zero_division=0.0, **how)


def by_class(score):
    def of(found):
        holds, scores = columns(found)
        return np.mean([score(holds[:, k], scores[:, k]) for k in range(holds.shape[1])])

    return of


THEIRS = {
    "balanced-accuracy": recall_of,
    "f1": f1_of,
    "auroc": by_class(roc_auc_score),
    "average-precision": by_class(average_precision_score),
    "r2": lambda found: r2_score(found.targets.reshape(found.predictions.shape), found.predictions),
}
CASES = [(kind, name, ties) for kind, names in OF.items() for name in names for ties in (False, True)]


def test_every_metric_that_ships_is_tried():
    assert {name for _, name, _ in CASES} == set(plugin.names(metrics.ROOM))


@pytest.mark.parametrize(("kind", "name", "ties"), [case for case in CASES if case[1] in THEIRS])
def test_a_metric_is_that_of_scikit_learn(kind, name, ties):
    found, metric = answers(kind, ties=ties), metrics.load(name)
    assert metric(found) == pytest.approx(THEIRS[name](found), rel=1e-12)
    for draw in list(metrics.draws(found))[:20]:
        some = found.rows(draw)
        if metrics.measure_if_possible(metric, some) is not None:
            assert metric(some) == pytest.approx(THEIRS[name](some), rel=1e-12)


@pytest.mark.parametrize(("kind", "name", "ties"), CASES)
def test_all_draws_at_once_give_what_each_draw_by_itself_gives(kind, name, ties):
    found, metric = answers(kind, ties=ties), metrics.load(name)
    slow = [metrics.measure_if_possible(metric, found.rows(draw)) for draw in metrics.draws(found)]
    fast = np.concatenate([metric.resampled(found, counts) for counts in metrics.counts(found)])
    assert len(slow) == len(fast) == metrics.RESAMPLES
    assert [value is None for value in slow] == np.isnan(fast).tolist()
    known = [value for value in slow if value is not None]
    assert fast[~np.isnan(fast)] == pytest.approx(known, rel=1e-5, abs=1e-6)
    once = np.ones((1, len(found)), np.float32)
    assert metric.resampled(found, once)[0] == pytest.approx(metric(found), rel=1e-5)


def test_draws_in_parts_are_the_draws_in_one_piece(monkeypatch):
    found = answers("classification")
    whole = np.concatenate(list(metrics.counts(found)))
    monkeypatch.setattr(metrics, "MOST_NUMBERS", 7 * ROWS)
    parts = list(metrics.counts(found))
    assert len(parts) == 29
    assert (np.concatenate(parts) == whole).all()


def test_a_draw_in_which_a_rare_class_is_missing_cannot_tell():
    found = answers("binary")
    found.targets[:] = 0
    found.targets[0] = 1
    (entry,) = metrics.table(["auroc"], found).values()
    assert entry["interval"] is not None
    told = np.isfinite(np.concatenate([metrics.load("auroc").resampled(found, c) for c in metrics.counts(found)]))
    assert 0.5 < told.mean() < 0.75  # 1 - 1/e of the draws have the one row


def test_every_metric_of_a_table_has_an_interval_around_its_value():
    for kind, names in OF.items():
        for entry in metrics.table(names, answers(kind)).values():
            low, high = entry["interval"]
            assert low <= entry["value"] <= high
            assert low < high


def test_the_interval_of_an_accuracy_is_as_wide_as_the_binomial_says():
    found = answers("binary", rows=2000)
    (entry,) = metrics.table(["accuracy"], found).values()
    low, high = entry["interval"]
    share = entry["value"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / 2000), rel=0.2)


def test_tokens_are_drawn_by_row_so_that_rows_which_repeat_themselves_do_not_narrow_the_interval():
    right = np.random.default_rng(0).random(100) < 0.5
    targets = np.zeros(2000, int)
    predictions = np.eye(2)[np.repeat(~right, 20).astype(int)]
    by_row = Answers("tokens", targets, predictions, ("a", "b"), np.repeat(np.arange(100), 20))
    low, high = metrics.table(["accuracy"], by_row)["accuracy"]["interval"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 100), rel=0.2)


def test_one_test_row_has_no_interval():
    assert metrics.table(["accuracy"], answers("binary").rows(np.array([0])))["accuracy"]["interval"] is None


@pytest.mark.parametrize("kind", ["classification", "binary", "multilabel"])
def test_classes_are_measured_as_scikit_learn_does(kind):
    found = answers(kind)
    said = per_class(found)
    expected = precision_recall_fscore_support(found.targets, found.labels, zero_division=0)
    for key, values in zip(("precision", "recall", "f1", "rows"), expected, strict=True):
        assert [one[key]["value"] if key != "rows" else one[key] for one in said] == pytest.approx(values.tolist())
    for one in said:
        for key in ("precision", "recall", "f1"):
            low, high = one[key]["interval"]
            assert low <= one[key]["value"] <= high


def test_of_rows_that_are_all_right_an_interval_still_says_how_little_is_known():
    right = Answers("classification", np.array([0] * 20 + [1] * 10), np.eye(2)[[0] * 20 + [1] * 10], ("a", "b"))
    low, high = metrics.table(["accuracy"], right)["accuracy"]["interval"]
    assert (round(low, 2), high) == (0.89, 1.0)
    assert [round(one["recall"]["interval"][0], 2) for one in per_class(right)] == [0.84, 0.72]


def test_numbers_have_no_classes_and_a_class_without_rows_no_recall():
    assert per_class(answers("regression")) == per_class(answers("tokens")) == []
    found = per_class(Answers("classification", np.array([0, 0, 1]), np.eye(3)[[0, 1, 1]], ("a", "b", "c")))
    assert [one["recall"] and one["recall"]["value"] for one in found] == [0.5, 1.0, None]


def test_one_answer_to_all_rows_reaches_the_share_of_the_largest_class():
    even = Answers("classification", np.array([0, 0, 0, 1]), np.full((4, 2), 0.5), ("no", "yes"))
    assert metrics.baseline(metrics.load("accuracy"), even) == 0.75


@pytest.mark.parametrize("name", ["log-loss", "perplexity", "brier"])
def test_of_answers_that_are_nearly_the_same_the_interval_still_holds_the_value_to_the_last_bit(name):
    """As of a model that has learnt nothing, in float32: rounding once put the value beside its interval."""
    rng, rows = np.random.default_rng(5), 40
    scores = (np.full((rows, 5), 0.2) + 1e-7 * rng.normal(size=(rows, 5))).astype(np.float32)
    for kind in ("classification", "tokens"):
        row = np.arange(rows) // 4 if kind == "tokens" else None
        entry = metrics.table([name], Answers(kind, rng.integers(0, 5, rows), scores, tuple("abcde"), row))
        (found,) = entry.values()
        assert found["interval"][0] <= found["value"] <= found["interval"][1]
