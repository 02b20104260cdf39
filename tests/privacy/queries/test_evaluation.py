"""What noised counts say of a model, held against scikit-learn and against the truth that an interval should cover."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from tacit.errors import BadInput
from tacit.parts import metrics
from tacit.parts.metrics import Answers
from tacit.privacy.queries import evaluation
from tacit.privacy.queries.evaluation import GRID, VALUES, Confusion, Errors, Hits, Means, Scores, combine, judgement
from tacit.privacy.queries.ranges import numbers

CLASSED = [Hits(), Confusion(3), Confusion(2), Scores()]
COLUMN = numbers("age", 0, limits=(0.0, 100.0), wide=None)


def answers(rng, rows, classes):
    targets = rng.integers(0, classes, rows)
    scores = rng.normal(0, 1, (rows, classes)) + 1.2 * np.eye(classes)[targets]
    return targets, np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


def exact(judged, targets, predictions):
    counts = judged.count(targets, predictions)
    return combine(judged, [counts.values], np.zeros(1), np.array([float(len(targets))]))


@pytest.mark.parametrize("judged", CLASSED, ids=lambda judged: type(judged).__name__)
@given(seed=st.integers(0, 10**6), rows=st.integers(0, 12))
def test_one_record_changes_one_count_by_one_and_never_two(judged, seed, rows):
    rng, classes = np.random.default_rng(seed), getattr(judged, "classes", 2)
    targets, predictions = answers(rng, rows + 1, classes)
    before, after = judged.count(targets[:-1], predictions[:-1]), judged.count(targets, predictions)
    change = after.values - before.values
    assert (change**2).sum() == 1 == judged.l2_squared
    assert len(after.values) == judged.cells
    assert after.values.sum() == rows + 1


@given(seed=st.integers(0, 10**6), largest=st.floats(1e-3, 1e3), spread=st.floats(0, 1e6))
def test_one_record_changes_sums_of_errors_by_no_more_than_is_priced(seed, largest, spread):
    rng, judged = np.random.default_rng(seed), Errors(largest)
    targets, predictions = rng.normal(0, 1, 6), rng.normal(0, 1 + spread, (6, 1))
    predictions[-1] = rng.choice([0.0, 1e30, np.nan, -np.inf, spread])
    before, after = (judged.count(targets[:n], predictions[:n]).values for n in (5, 6))
    change = after - before
    assert (change >= 0).all()
    assert (change**2).sum() <= judged.l2_squared == 3 * GRID**2


@given(seed=st.integers(0, 10**6), largest=st.floats(1e-3, 1e3), kind=st.sampled_from(sorted(VALUES)))
def test_one_record_changes_a_sum_with_a_bound_by_no_more_than_is_priced(seed, largest, kind):
    rng, judged = np.random.default_rng(seed), Means(*kind, largest)
    if kind[0] == "multilabel":
        targets, predictions = rng.integers(0, 2, (6, 3)).astype(np.float32), rng.random((6, 3))
    else:
        targets, predictions = answers(rng, 6, 3)
    predictions[-1] = rng.choice([0.0, 1.0, np.nan, np.inf, -np.inf])
    before, after = (judged.count(targets[:n], predictions[:n]).values for n in (5, 6))
    change = after - before
    assert (change >= 0).all()
    assert change[0] == GRID
    assert (change**2).sum() <= judged.l2_squared == 2 * GRID**2


def test_exact_sums_give_the_metrics_of_public_rows():
    rng = np.random.default_rng(0)
    targets, predictions = answers(rng, 2000, 3)
    found = exact(judgement("classification", "log_loss", classes=3, largest_error=8.0), targets, predictions)
    assert found.values["log_loss"]["value"] == pytest.approx(sk.log_loss(targets, predictions), abs=0.01)
    assert found.rows == 2000
    targets, predictions = rng.integers(0, 2, (2000, 3)).astype(np.float32), rng.random((2000, 3)).astype(np.float32)
    public = Answers("multilabel", targets, predictions)
    for metric in ("accuracy", "brier"):
        found = exact(judgement("multilabel", metric, classes=0, numbers=3), targets, predictions).values[metric]
        assert found["value"] == pytest.approx(metrics.load(metric)(public), abs=1e-3)


def test_a_loss_beyond_the_bound_counts_as_the_bound():
    targets, predictions = np.zeros(50, int), np.tile([1e-9, 1 - 1e-9], (50, 1))
    found = exact(Means("binary", "log_loss", 2.0), targets, predictions)
    assert found.values["log_loss"]["value"] == pytest.approx(2.0)


@pytest.mark.parametrize("judged", [*CLASSED, COLUMN], ids=lambda judged: type(judged).__name__)
def test_where_each_record_is_in_one_cell_cells_add_up_to_records_and_vary_by_their_counts(judged):
    counts = np.arange(judged.cells) - 1.0
    assert judged.rows(counts) == counts.sum()
    assert judged.sampling(counts).tolist() == [0.0, *counts[1:]]


def test_exact_counts_give_scikit_learns_numbers():
    rng = np.random.default_rng(0)
    targets, predictions = answers(rng, 2000, 3)
    found, labels = exact(Confusion(3), targets, predictions).values, predictions.argmax(1)
    assert found["accuracy"]["value"] == pytest.approx(sk.accuracy_score(targets, labels))
    assert found["balanced_accuracy"]["value"] == pytest.approx(sk.balanced_accuracy_score(targets, labels))
    assert found["f1"]["value"] == pytest.approx(sk.f1_score(targets, labels, average="macro"))
    assert exact(Hits(), targets, predictions).values["accuracy"]["value"] == pytest.approx(np.mean(labels == targets))
    targets, predictions = answers(rng, 2000, 2)
    found, labels = exact(Scores(), targets, predictions).values, predictions.argmax(1)
    assert found["auroc"]["value"] == pytest.approx(sk.roc_auc_score(targets, predictions[:, 1]), abs=0.01)
    assert found["f1"]["value"] == pytest.approx(sk.f1_score(targets, labels))
    assert found["accuracy"]["value"] == pytest.approx(sk.accuracy_score(targets, labels))
    wanted, said = rng.normal(0, 2, 2000), rng.normal(0, 2, (2000, 1))
    found = exact(Errors(20.0), wanted, said).values
    assert found["mae"]["value"] == pytest.approx(sk.mean_absolute_error(wanted, said), rel=0.01)
    assert found["rmse"]["value"] == pytest.approx(math.sqrt(sk.mean_squared_error(wanted, said)), rel=0.01)


def test_even_odds_are_a_no_for_scores_as_for_labels():
    targets, predictions = np.array([0, 0, 1]), np.full((3, 2), 0.5)
    assert exact(Scores(), targets, predictions).values["accuracy"]["value"] == pytest.approx(2 / 3)


def test_of_one_class_or_of_noise_alone_nothing_is_told():
    rng = np.random.default_rng(0)
    targets, predictions = answers(rng, 500, 2)
    counts = Scores().count(np.zeros_like(targets), predictions).values + np.rint(rng.normal(0, 4, Scores().cells))
    found = combine(Scores(), [counts], np.array([4.0]), np.array([500.0])).values
    assert found["auroc"]["value"] is found["balanced_accuracy"]["value"] is None
    assert found["accuracy"]["value"] is not None
    noise = combine(Hits(), [np.array([3, 5])], np.array([20.0]), np.array([1.0])).values
    assert noise["accuracy"] == {"value": None, "interval": None}


def covered(judged, make, truth, metric, *, told=1.0, draws=150):
    """How often the interval holds the truth, over rows and noise; `told` is how much of the noise the interval is told of."""
    rng, hits, known = np.random.default_rng(1), 0, 0
    stds = np.array([6.0, 6.0, 12.0, 25.0]) * math.sqrt(judged.l2_squared)
    for _ in range(draws):
        counts = [judged.count(*make(rng)).values + np.rint(rng.normal(0, std, judged.cells)) for std in stds]
        ends = combine(judged, counts, told * stds, np.full(4, 150.0)).values[metric]["interval"]
        known += ends is not None
        hits += ends is not None and ends[0] <= truth <= ends[1]
    assert known > draws / 2
    return hits / known


def test_the_interval_covers_the_truth_over_noise_and_rows_and_would_not_without_the_noise(monkeypatch):
    monkeypatch.setattr(evaluation, "DRAWS", 300)  # fewer, so that its ends are rougher than a run's

    def hits(rng):
        right = rng.random(150) < 0.8
        return np.zeros(150, int), np.where(right[:, None], [1.0, 0.0], [0.0, 1.0])

    assert 0.9 <= covered(Hits(), hits, 0.8, "accuracy") <= 1.0
    assert covered(Hits(), hits, 0.8, "accuracy", told=1e-3) < 0.75

    def errors(rng):
        return np.zeros(150), rng.uniform(0, 1, (150, 1))

    assert 0.9 <= covered(Errors(2.0), errors, 0.5, "mae") <= 1.0

    def scores(rng):
        targets = rng.integers(0, 2, 150)
        logit = rng.normal(0, 1, 150) + 1.5 * targets
        yes = 1 / (1 + np.exp(-logit))
        return targets, np.stack([1 - yes, yes], 1)

    truth = sk.log_loss(*answers(np.random.default_rng(99), 100_000, 3))
    losses = Means("classification", "log_loss", 6.0)
    assert 0.9 <= covered(losses, lambda rng: answers(rng, 150, 3), truth, "log_loss") <= 1.0

    truth = 0.5 * (1 + math.erf(1.5 / 2))  # P(N(1.5, 1) > N(0, 1))
    assert 0.88 <= covered(Scores(), scores, truth, "auroc", draws=100) <= 1.0


def test_a_client_with_much_noise_weighs_little_and_without_noise_every_row_counts_alike():
    good, bad = np.array([100, 900]), np.array([90, 10])
    exactly = combine(Hits(), [good, bad], np.zeros(2), np.array([1000.0, 100.0])).values["accuracy"]["value"]
    assert exactly == pytest.approx(910 / 1100)
    noisy = combine(Hits(), [good, bad * 1000], np.array([1.0, 1e6]), np.array([1000.0, 100.0])).values["accuracy"]
    assert noisy["value"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "metric", "settings", "expected"),
    [
        ("classification", "accuracy", {"classes": 10}, Hits),
        ("classification", "accuracy", {"classes": 2}, Confusion),
        ("binary", "auroc", {"classes": 2}, Scores),
        ("classification", "f1", {"classes": 5}, Confusion),
        ("regression", "rmse", {"classes": 0, "largest_error": 3.0}, Errors),
    ],
)
def test_what_is_counted_follows_from_the_metric(kind, metric, settings, expected):
    assert type(judgement(kind, metric, **settings)) is expected


@pytest.mark.parametrize(
    ("kind", "metric", "settings", "message"),
    [
        ("classification", "auroc", {"classes": 3}, "cannot be asked for auroc"),
        ("classification", "log_loss", {"classes": 2}, "A log loss has no bound"),
        ("binary", "brier", {"classes": 2}, "balanced-accuracy, f1, auroc or log-loss"),
        ("classification", "f1", {"classes": 31}, "cannot be asked for f1"),
        ("tokens", "perplexity", {"classes": 50}, "cannot be asked for perplexity"),
        ("multilabel", "auroc", {"classes": 2}, "cannot be asked for auroc of this multilabel"),
        ("regression", "rmse", {"classes": 0}, r"set metric\.largest_error"),
        ("regression", "rmse", {"classes": 0, "numbers": 2, "largest_error": 1.0}, "cannot be asked for rmse"),
        ("regression", "r2", {"classes": 0, "largest_error": 1.0}, "cannot be asked for r2"),
    ],
)
def test_a_metric_that_counts_cannot_tell_is_refused(kind, metric, settings, message):
    with pytest.raises(BadInput, match=message):
        judgement(kind, metric, **settings)


@pytest.mark.parametrize(
    ("kind", "classes", "numbers", "named"),
    [
        ("binary", 2, 1, "accuracy, balanced-accuracy, f1, auroc or log-loss"),
        ("classification", 10, 1, "accuracy, balanced-accuracy, f1 or log-loss"),
        ("classification", 300, 1, "accuracy or log-loss"),
        ("multilabel", 0, 3, "accuracy or brier"),
        ("regression", 0, 1, "mae or rmse"),
        ("regression", 0, 3, None),
        ("tokens", 50, 1, None),
    ],
)
def test_a_metric_that_cannot_be_asked_for_is_told_those_of_the_task_and_each_of_them_can(
    kind, classes, numbers, named
):
    facts = {"classes": classes, "numbers": numbers, "largest_error": 1.0}
    instead = f"set metric.choose to {named}, or " if named else ""
    with pytest.raises(BadInput) as refusal:
        judgement(kind, "r2" if kind == "multilabel" else "brier", **facts)
    assert str(refusal.value).endswith(f"on their held-out rows: {instead}leave out data.held_out.")
    for metric in named.replace(" or ", ", ").split(", ") if named else ():
        assert judgement(kind, metric.replace("-", "_"), **facts).cells
