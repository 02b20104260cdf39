"""Rows that a program hands over: taken as they are, copied, and refused in a sentence that says what to do."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Subset, TensorDataset

import tacit
from tacit import Dataset
from tacit.data.given import digest_of
from tacit.data.population import coins
from tacit.engine.assemble import clients
from tacit.engine.ledgers import population_id, who_holds
from tacit.errors import BadData, BadInput
from tacit.simulation import with_passed

X = np.arange(24, dtype=np.float64).reshape(12, 2)
Y = np.array([0, 1] * 6)
HOW = {"classes": 2, "test": (X, Y)}


def half(x):
    return torch.from_numpy(x).to(torch.bfloat16).requires_grad_(x.ndim > 1)


@pytest.mark.parametrize("kind", [np.asarray, half, np.ndarray.tolist, lambda x: x.astype(np.int64)])
def test_arrays_tensors_and_lists_are_the_same_rows(kind):
    assert digest_of(Dataset(kind(X), kind(Y), **HOW)) == digest_of(Dataset(X, Y, **HOW))


def test_what_the_program_does_with_its_arrays_afterwards_changes_nothing():
    x = X.astype(np.float32)
    data = Dataset(x, Y, classes=2, test=(x, Y))
    before = data.rows.x.clone()
    x[:] = np.nan
    assert torch.equal(data.rows.x, before)
    assert torch.equal(data.rows.test_x, before)


def test_pairs_keep_the_order_of_their_clients_because_budgets_may_be_a_list_in_it():
    data = Dataset([(X[:3], Y[:3]), (X[3:], Y[3:])], clients=["north", "coast"], **HOW)
    assert data.rows.client_names == ("north", "coast")
    assert data.rows.client.tolist() == [0] * 3 + [1] * 9
    by_name = Dataset({"north": (X[:3], Y[:3]), "coast": (X[3:], Y[3:])}, **HOW)
    assert digest_of(by_name) == digest_of(data)
    assert Dataset([(X, Y)], **HOW).rows.client_names == ("client-0",)


def test_a_name_for_each_row_makes_clients_in_natural_order():
    data = Dataset(X, Y, clients=["b10", "b9", "a"] * 4, **HOW)
    assert data.rows.client_names == ("a", "b9", "b10")
    assert data.rows.client[:3].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("y", "classes", "expected"),
    [
        (Y.astype(float), 2, [0, 1]),
        (Y.astype(bool), ["no", "yes"], [0, 1]),
        (["yes", "no"] * 6, ["no", "yes"], [1, 0]),
        (np.array(["yes", "no"] * 6, dtype=object), ("no", "yes"), [1, 0]),
        (Y + 5, np.array([6, 5]), [1, 0]),
        (Y * 7, "from-data", [0, 1]),
        (Y, np.int64(2), [0, 1]),
    ],
)
def test_labels_are_what_classes_declares(y, classes, expected):
    assert Dataset(X, y, classes=classes, test=(X, y)).rows.y[:2].tolist() == expected


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (X[:0], Y[:0], r"^x has no rows"),
        (X[:, 0], Y, r"^Expected x to be numbers of shape \[rows, ...\], got float64 of shape \[12\]"),
        (X.astype(str), Y, r"^Expected x to be numbers"),
        ([*X.tolist(), [1.0]], Y, r"^x cannot be made an array .* every row needs the same shape"),
        (np.where(X == 5, np.nan, X), Y, r"^Row 2 in x holds NaN or infinity"),
        (np.where(X == 5, 1e300, X), Y, r"^Row 2 in x holds NaN or infinity"),
        (X, Y[:3], r"^Expected y to be 12 integers or texts, got int64 of shape \[3\]"),
        (X, Y[:, None], r"^Expected y to be 12 integers or texts, got int64 of shape \[12, 1\]"),
        (X, Y + 0.5, r"^Row 0 of y says 0.5 .* a text or an integer"),
        (X, np.where(Y == 1, np.nan, Y), r"^Row 1 of y says nan"),
        (X, Y + 1, r"^y has the label '2' in row 1, which classes does not declare"),
        (X, np.array([0, None] * 6, dtype=object), r"^Row 1 of y says None"),
        (torch.eye(12).to_sparse(), Y, r"^x is a sparse tensor: call to_dense"),
    ],
)
def test_rows_and_labels_that_cannot_be_used_are_named(x, y, sentence):
    with pytest.raises(BadData, match=sentence):
        Dataset(x, y, **HOW)


@pytest.mark.parametrize(
    ("pairs", "clients", "sentence"),
    [
        (
            [(X, Y), (X[:, :1], Y)],
            None,
            r"^Client 'client-0' has rows of shape \[2\] and client 'client-1' \[1\]",
        ),
        ([(X, Y), (X[:0], Y[:0])], ["a", "b"], r"^x of client 'b' has no rows"),
        ([(X, Y), (np.full((1, 2), np.inf), [1])], ["a", "b"], r"^Row 0 in x of client 'b' holds NaN or infinity"),
        ([(X, Y), (X, Y[:2])], ["a", "b"], r"^Expected y of client 'b' to be 12"),
        ([(X, Y), (X, ["1"] * 12)], ["a", "b"], r"^Client 'a' has labels that are numbers and client 'b' texts"),
        ([(X, Y), X], ["a", "b"], r"what stands for client 'b' is a ndarray"),
        ([(X, Y)], ["a", "b"], r"^Expected clients to be 1 different names"),
        ([(X, Y), (X, Y)], ["a", "a"], r"^Expected clients to be 2 different names"),
        ({"a": (X, Y)}, ["a"], r"in the dict already"),
        ([], None, r"got no clients"),
        (X, None, r"got a ndarray alone"),
    ],
)
def test_pairs_that_do_not_fit_are_named_by_client(pairs, clients, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset(pairs, clients=clients, **HOW)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": None}, r"^Expected classes to declare the labels"),
        ({"classes": 1}, r"^Expected classes to declare at least 2 labels"),
        ({"classes": ["a", "a"]}, r"^Expected classes to declare at least 2 labels, each once"),
        ({"test": None}, r"^There are no test rows: pass test=.*or test_share=0.2"),
        ({"test_share": 0.5}, r"^test= and test_share= say twice"),
        ({"test": None, "test_share": 1.5}, r"^Expected 0 < test_share < 1"),
        ({"test": X}, r"^Expected test to be a pair \(x, y\)"),
        ({"test": (X[:, :1], Y)}, r"^Expected training and test rows of python to have one shape"),
        ({"test": (X, Y + 1)}, r"^the y of test has the label '2'"),
        ({"test": (X[:0], Y[:0])}, r"^x of test has no rows"),
        ({"clients": ["a"] * 3}, r"^Expected clients to be 12"),
        ({"clients": ["a", None] * 6}, r"^Row 1 of clients says None"),
    ],
)
def test_what_is_said_beside_the_rows_is_checked(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset(X, Y, **HOW | change)


def test_a_quoted_label_is_left_out_of_logs():
    with pytest.raises(BadData) as caught:
        Dataset(X, ["flu", "no"] * 6, **HOW)
    assert "flu" not in caught.value.discreet


ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32))
LABELS = torch.from_numpy(np.random.default_rng(1).integers(0, 2, 4000))


def test_held_out_rows_are_said_to_be_unprotected_and_leave_their_clients():
    data = Dataset(ROWS, LABELS, clients=np.arange(4000) % 5, classes=2, test_share=0.25).rows
    assert len(data.test_y) + len(data.y) == 4000
    assert data.notes == (f"held out {len(data.test_y)} of the clients' rows as the test set: these are not protected",)
    held = coins(ROWS, LABELS, share=0.25, seed=0)
    assert torch.equal(data.test_x, ROWS[held])
    assert data.client.tolist() == (np.arange(4000) % 5)[~held].tolist()


def hands(data):
    """What a ledger knows such rows by: their condition under one key, and what it calls the population."""
    chosen = with_passed(tacit.Experiment(privacy={"kind": "none"}), data=data)
    dataset, _, population = clients(chosen)
    held = [condition(b"key").digest for condition in who_holds(chosen, population, dataset)]
    return held, population_id(chosen, population)


def test_the_identity_of_hands_does_not_ask_for_an_order_and_that_of_rows_does():
    order = np.random.default_rng(0).permutation(12)
    whose = np.array(["a", "b", "c"] * 4)
    one = Dataset(X, Y, clients=whose, **HOW)
    other = Dataset(X[order], Y[order], clients=whose[order], **HOW)
    assert (hands(one) == hands(other), digest_of(one) == digest_of(other)) == (True, False)


@pytest.mark.parametrize("change", ["hands", "value", "label", "test", "classes", "share"])
def test_whatever_changes_of_the_rows_changes_their_identities(change):
    x, y, whose, how = X.copy(), Y.copy(), np.array(["a", "b", "c"] * 4), dict(HOW)
    if change == "share":
        how, whose = {"classes": 2, "test_share": 0.5}, np.array(["a"] * 12)
    first = Dataset(x, y, clients=whose, **how)
    if change == "hands":
        whose[0] = "b"
    elif change == "value":
        x[3, 1] += 0.5
    elif change == "label":
        y[3] = 1 - y[3]
    elif change == "test":
        how["test"] = (X[:5], Y[:5])
    elif change == "classes":
        how["classes"] = 3
    else:
        how["test_seed"] = 1
    second = Dataset(x, y, clients=whose, **how)
    assert hands(first) != hands(second)
    assert digest_of(first) != digest_of(second)


class Items(TorchDataset):
    """A map-style dataset as people write them, with a transform and a list of classes."""

    def __init__(self, x, y, classes=None, transform=None):
        self.x, self.y, self.transform = x, y, transform or torch.as_tensor
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.transform(self.x[index]), int(self.y[index])


def test_a_torch_dataset_is_its_items():
    expected = digest_of(Dataset(X, Y, **HOW))
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    for dataset in (tensors, Items(X, Y), Subset(Items(X, Y), range(12))):
        assert digest_of(Dataset.from_torch(dataset, classes=2, test=tensors)) == expected


def test_torch_datasets_of_clients_are_taken_by_name():
    north, coast = Items(X[:4], Y[:4]), Items(X[4:], Y[4:])
    test = Items(X, Y)
    expected = digest_of(Dataset({"north": (X[:4], Y[:4]), "coast": (X[4:], Y[4:])}, **HOW))
    assert digest_of(Dataset.from_torch({"north": north, "coast": coast}, classes=2, test=test)) == expected
    assert digest_of(Dataset.from_torch([north, coast], clients=["north", "coast"], classes=2, test=test)) == expected


def test_classes_that_a_torch_dataset_lists_are_counted_by_position_whatever_their_names():
    items = Items(X, Y, classes=["1", "0"])
    data = Dataset.from_torch(items, test=Items(X, 1 - Y)).rows
    assert data.class_names == ("1", "0")
    assert (data.y[:2].tolist(), data.test_y[:2].tolist()) == ([0, 1], [1, 0])
    with pytest.raises(BadData, match=r"Row 1 has the label 2, and there are 2 classes"):
        Dataset.from_torch(Items(X, Y * 2, classes=["a", "b"]), test_share=0.5)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Endless(), r"does not say how many items"),
        (Items(X[:0], Y[:0]), r"has no items"),
        (Items(X, Y, transform=lambda row: "text"), r"The x of item 0 of the torch dataset is a str and no tensor"),
        (Items(X, Y, transform=lambda row: row[: 1 + int(row[0] > 3)]), r"Item 0 .* shape \[1\] and item 2 \[2\]"),
        (Items(X, Y, transform=lambda row: 1 / 0), r"Item 0 of the torch dataset cannot be read \(ZeroDivisionError"),
        (TensorDataset(torch.zeros(3, 1)), r"Expected items \(x, y\)"),
    ],
)
def test_a_torch_dataset_that_cannot_be_used_is_refused_by_item(dataset, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset.from_torch(dataset, classes=2, test_share=0.5)


SHARES = {"north": slice(0, 3), "coast": slice(3, 7), "valley": slice(7, 12)}


def loader(name):
    return X[SHARES[name]], Y[SHARES[name]]


def test_rows_that_stay_in_a_file_are_the_rows_that_were_loaded_once(tmp_path):
    asked = []
    stored = Dataset.from_loader(lambda name: asked.append(name) or loader(name), SHARES, folder=tmp_path, **HOW)
    assert asked == list(SHARES)
    held = Dataset({name: loader(name) for name in SHARES}, **HOW)
    assert (digest_of(stored), hands(stored)) == (digest_of(held), hands(held))
    assert list(tmp_path.iterdir()) == []  # no copy of anybody's rows has a name


@pytest.mark.parametrize(
    ("load", "clients", "how", "sentence"),
    [
        (lambda name: 1 / 0, SHARES, {}, r"^The rows of client 'north' cannot be loaded \(ZeroDivisionError"),
        (lambda name: X, SHARES, {}, r"what stands for client 'north' is a ndarray"),
        (
            lambda name: (X[:, : 1 + (name == "north")], Y),
            SHARES,
            {},
            r"^Client 'north' has rows of shape",
        ),
        (lambda name: (X * np.nan, Y), SHARES, {}, r"^Row 0 in x of client 'north' holds NaN"),
        (loader, [], {}, r"^There are no clients"),
        (loader, ["north", "north"], {}, r"^Expected clients to be 2 different names"),
        (loader, "north", {}, r"^Expected a function that gives"),
        (loader, SHARES, {"test": None, "test_share": 0.5}, r"^Rows that stay in a file are not divided: pass test="),
        (loader, SHARES, {"classes": None}, r"^Expected classes to declare"),
        (loader, SHARES, {"folder": "/nowhere/at/all"}, r"cannot hold the rows \(No such file or directory\)"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_client(load, clients, how, sentence):
    with pytest.raises(BadInput, match=sentence):
        Dataset.from_loader(load, clients, **HOW | how)


def test_targets_may_be_numbers_and_a_regression_is_learnt_from_them(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = x @ [1.0, -2.0, 0.5]
    pairs = {"north": (x[:60], y[:60]), "south": (x[60:], y[60:])}
    data = tacit.Dataset(pairs, classes="numbers", test=(x, y))
    assert repr(data) == "Dataset(120 rows of shape [3], 2 clients, numbers, 120 test rows)"
    experiment = tacit.Experiment(
        task={"kind": "regression"},
        model={"name": "logr"},
        data={"partition": "natural"},
        train={"rounds": 10, "local_steps": 10, "learning_rate": 0.1},
    )
    history = tacit.run(experiment, data=data, out=tmp_path / "run")
    assert history.summary["test_rmse"] < 0.3 * history.summary["metrics"]["rmse"]["baseline"]
    assert tacit.load(tmp_path / "run").predict(x[:4]).values[:, 0] == pytest.approx(y[:4], abs=1.0)


def test_targets_that_are_no_numbers_are_refused():
    with pytest.raises(BadData, match="Expected y to be 2 numbers or rows of numbers"):
        tacit.Dataset(X[:2], ["a", "b"], classes="numbers", test_share=0.5)
    with pytest.raises(BadData, match="targets of shape"):
        tacit.Dataset([(X[:2], [1.0, 2.0]), (X[:2], [[1.0, 2.0]] * 2)], classes="numbers", test_share=0.5)
    with pytest.raises(BadData, match="targets of python's training data holds NaN"):
        tacit.Dataset(X[:2], [1.0, float("nan")], classes="numbers", test=(X[:1], [1.0]))


def test_a_share_of_zero_makes_nobodys_rows_public_and_the_run_says_what_is_not_known(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 4)).astype(np.float32)
    rows = tacit.Dataset(x, (x[:, 0] > 0).astype(int), clients=np.arange(120) % 3, classes=2, test_share=0)
    assert len(rows.rows.y) == 120
    asked = tacit.Experiment(
        data={"held_out": 0.3},
        model={"name": "logr"},
        train={"rounds": 2},
        privacy={"kind": "local", "epsilon": 20.0},
        run={"workers": 1},
    )
    history = tacit.run(asked, data=rows, out=tmp_path / "run")
    assert "accuracy" not in history.rounds[-1]
    assert history.summary["at_clients"]["rows"] > 0
    assert any("there are no public test rows" in note for note in history.summary["notes"])
