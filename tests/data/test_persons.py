"""Whose rows are whose: a column of ids, of which a hash is kept; every person is whole at one client and on one side."""

# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.data.partition import share_out
from tacit.data.population import coins, person_tags, persons_of, populate
from tacit.data.sources import load
from tacit.engine.assemble import build
from tacit.errors import BadData, BadInput
from tacit.experiment.data import DataSection
from tacit.simulation import with_passed

ROWS = 60
IDS = [f"p{k // 3}" for k in range(ROWS)]
X = np.arange(ROWS * 2, dtype=float).reshape(ROWS, 2)
Y = np.arange(ROWS) % 2
HOW = {"classes": 2, "test": (X[:4], Y[:4])}


def frame(**changes):
    return pd.DataFrame({"age": X[:, 0], "dose": X[:, 1], "ill": Y, "who": IDS} | changes)


def written(folder, ids=IDS, *, head="who,age,dose,ill,place"):
    lines = [
        f"{one},{a},{b},{c},{'north' if k < 30 else 'south'}"
        for k, (one, (a, b), c) in enumerate(zip(ids, X, Y, strict=True))
    ]
    (folder / "rows.csv").write_text("\n".join([head, *lines]) + "\n")
    return folder / "rows.csv"


def section(path, **changes):
    how = {
        "name": "csv",
        "path": str(path),
        "label": "ill",
        "classes": ["0", "1"],
        "client_column": "place",
        "person": "who",
    }
    return DataSection(**how | {"numeric": {"age": [0, 200], "dose": [0, 200]}, "test_share": 0} | changes)


def sizes(tags):
    return sorted(np.unique(tags, return_counts=True)[1].tolist())


def test_a_column_of_ids_names_the_persons_and_is_no_feature(tmp_path):
    read = load(section(written(tmp_path)), seed=0)
    assert read.x.shape == (ROWS, 2)
    assert sizes(read.person) == [3] * 20
    given = tacit.Dataset.from_pandas(frame(), label="ill", person="who", classes=2, test=frame()).rows
    assert given.x.shape == (ROWS, 2)
    assert (given.person == read.person).all()
    assert (tacit.Dataset(X, Y, persons=IDS, **HOW).rows.person == read.person).all()
    parts = tacit.Dataset([(X[:30], Y[:30]), (X[30:], Y[30:])], persons=[IDS[:30], IDS[30:]], **HOW)
    assert (parts.rows.person == read.person).all()
    named = tacit.Dataset({"a": (X[:30], Y[:30]), "b": (X[30:], Y[30:])}, persons={"b": IDS[30:], "a": IDS[:30]}, **HOW)
    assert (named.rows.person == read.person).all()


def test_a_column_of_a_saved_hugging_face_dataset_does_so_too(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(frame()).save_to_disk(tmp_path / "saved")
    given = tacit.Dataset.from_hf(tmp_path / "saved", label="ill", person="who", classes=2, test_share=0).rows
    assert given.x.shape == (ROWS, 2)
    assert (given.person == person_tags(IDS)).all()
    with pytest.raises(BadInput, match="ids would be learned"):
        tacit.Dataset.from_hf(tmp_path / "saved", label="ill", person="age", columns=["age"], classes=2, test_share=0)


def test_no_id_is_kept():
    given = tacit.Dataset(X, Y, persons=[f"secret-{one}" for one in IDS], **HOW)
    assert b"secret" not in given.rows.person.tobytes()
    assert "secret" not in repr(vars(given.rows))


FLOATS = "a float cannot tell long ids apart"
WRONG = {
    "missing": ([None, *IDS[1:]], "Row 0 of persons names no person"),
    "empty": (["", *IDS[1:]], "Row 0 of persons names no person"),
    "blank": ([" ", *IDS[1:]], "Row 0 of persons names no person"),
    "a gap as a text": (["nan", *IDS[1:]], "Row 0 of persons names no person"),
    "a gap of pandas as a text": (["<NA>", *IDS[1:]], "Row 0 of persons names no person"),
    "nan": (np.array([np.nan] * ROWS), "Row 0 of persons names no person"),
    "floats": (np.arange(ROWS) / 2, FLOATS),
    "whole floats": (np.arange(ROWS, dtype=float), FLOATS),
    "truth": ([True] * ROWS, "expected a text or a whole number"),
    "too few": (IDS[:-1], "one person per row"),
    "two columns": (np.zeros((ROWS, 2), int), "one id per row"),
}


@pytest.mark.parametrize("case", WRONG)
def test_ids_that_name_no_person_are_refused_in_one_sentence(case):
    ids, words = WRONG[case]
    with pytest.raises(BadData, match=words):
        tacit.Dataset(X, Y, persons=ids, **HOW)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("", "is missing"),
        ("  ", "is missing"),
        ("NA", "is missing"),
        ("None", "is missing"),
        ("12.5", FLOATS),
        ("1e5", FLOATS),
    ],
)
def test_a_cell_of_a_csv_that_names_no_person_is_refused_with_its_line(tmp_path, cell, words):
    path = written(tmp_path, [*IDS[:7], cell, *IDS[8:]])
    with pytest.raises(BadData, match=words) as refused:
        load(section(path), seed=0)
    assert "line 9" in str(refused.value)


def test_whole_numbers_and_texts_name_the_same_persons(tmp_path):
    numbers = [int(one[1:]) for one in IDS]
    assert (
        load(section(written(tmp_path, numbers)), seed=0).person == person_tags([str(one) for one in numbers])
    ).all()
    assert (tacit.Dataset(X, Y, persons=numbers, **HOW).rows.person == person_tags([str(one) for one in numbers])).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"label": "who"},
        {"client_column": "who"},
        {"columns": ["age", "dose", "who"]},
        {"categorical": {"who": ["p0", "p1"]}},
        {"numeric": {"age": [0, 200], "dose": [0, 200], "who": [0, 9]}},
    ],
)
def test_a_person_column_with_another_role_is_refused_for_it_would_be_learned(tmp_path, changes):
    with pytest.raises(BadInput, match="ids would be learned"):
        load(section(written(tmp_path), **changes), seed=0)


def test_so_it_is_in_a_frame():
    for more in ({"label": "who"}, {"label": "ill", "columns": ["age", "who"]}):
        with pytest.raises(BadInput, match="ids would be learned"):
            tacit.Dataset.from_pandas(frame(), person="who", classes="from-data", test_share=0, **more)
    with pytest.raises(BadInput, match="no column 'whom'"):
        tacit.Dataset.from_pandas(frame(), label="ill", person="whom", classes=2, test_share=0)
    with pytest.raises(BadData, match="is empty in row 4"):
        tacit.Dataset.from_pandas(
            frame(who=[*IDS[:4], None, *IDS[5:]]), label="ill", person="who", classes=2, test_share=0
        )


def test_a_column_of_ids_is_not_read_for_a_feature_whose_name_reads_alike():
    with pytest.raises(BadData, match="two columns named '0'"):
        tacit.Dataset.from_pandas(
            frame().rename(columns={"who": 0, "age": "0"}), label="ill", person=0, classes=2, test_share=0
        )


def test_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadData, match=r"no column .whom., which data\.person names"):
        load(section(written(tmp_path), person="whom"), seed=0)


def test_a_person_at_two_clients_is_refused_by_the_clients_names(tmp_path):
    ids = [*IDS[:59], "p0"]
    data = section(written(tmp_path, ids))
    experiment = tacit.Experiment(data=data.model_dump(exclude_none=True), privacy=private())
    with pytest.raises(BadData, match="One person has rows at 'north' and at 'south'") as refused:
        build(experiment)
    assert "p0" not in str(refused.value)
    assert "put the client's name before them" in str(refused.value)


def private(**more):
    return {"kind": "local", "unit": "person", "epsilon": 3.0, "delta": 1e-3} | more


def test_a_person_is_held_out_whole(tmp_path):
    for read in (
        load(section(written(tmp_path), test_share=0.3), seed=1),
        tacit.Dataset(X, Y, persons=IDS, classes=2, test_share=0.3, test_seed=1).rows,
    ):
        assert sizes(read.person) == [3] * len(np.unique(read.person))
        assert 0 < len(read.test_y) == ROWS - len(read.y)
        assert len(read.test_y) % 3 == 0


def test_rows_that_a_client_keeps_for_itself_are_whole_persons():
    data = tacit.Dataset(X, Y, persons=IDS, clients=["a"] * 30 + ["b"] * 30, **HOW)
    experiment = tacit.Experiment(data={"partition": "natural", "own_share": 0.4}, privacy=private())
    parts = build(with_passed(experiment, data=data))
    population, held = parts.population, parts.population.held
    assert (np.diff(population.persons.offsets) == 3).all()
    assert (np.diff(held.persons.offsets) == 3).all()
    assert population.sizes.sum() + held.sizes.sum() == 20
    assert population[1].persons.offsets.tolist() == list(range(0, 3 * population[1].size + 1, 3))
    assert int(population.rows.sum()) == len(population.y) == 3 * int(population.sizes.sum())


def test_a_persons_coin_follows_the_id_and_no_row():
    tags = person_tags(IDS)
    held = coins(torch.zeros(ROWS, 1), torch.zeros(ROWS), share=0.4, seed=3, persons=tags)
    assert (held.reshape(20, 3).all(1) == held.reshape(20, 3).any(1)).all()
    fewer = coins(torch.ones(30, 1), torch.zeros(30), share=0.4, seed=3, persons=tags[30:])
    assert (fewer == held[30:]).all()


def test_dealing_rows_out_deals_persons_out(tmp_path):
    data = section(written(tmp_path), client_column=None, partition="iid", clients=4, columns=["age", "dose"])
    read = load(data, seed=0)
    shares = share_out(read, data, rng=np.random.default_rng(0))
    assert shares.sizes.tolist() == [15] * 4
    made = populate(
        read, shares, names=tuple("abcd"), epsilons=np.ones(4), delta=1e-3, unit="person", rows_per_person=2
    )
    assert made.sizes.tolist() == [5] * 4
    assert made.rows.tolist() == [15] * 4
    assert sorted(shares.order.tolist()) == list(range(ROWS))
    for changes in ({"partition": "shards"}, {"partition": "dirichlet"}, {"examples_per_client": 3}):
        with pytest.raises(BadInput, match="each with all its rows is dealt to one client"):
            share_out(
                read,
                section(tmp_path / "rows.csv", **{"client_column": None, "partition": "iid"} | changes),
                rng=np.random.default_rng(0),
            )
    with pytest.raises(BadInput, match="at least one person per client, got 20 for 30"):
        share_out(read, data.model_copy(update={"clients": 30}), rng=np.random.default_rng(0))


def test_rows_of_one_person_need_not_lie_together(tmp_path):
    order = np.random.default_rng(0).permutation(30)
    mixed = tacit.Dataset(X[:30][order], Y[:30][order], persons=np.array(IDS[:30])[order], **HOW).rows
    experiment = tacit.Experiment(data={"partition": "iid", "clients": 1}, privacy=private())
    shares = share_out(mixed, experiment.data, rng=np.random.default_rng(0))
    made = persons_of(mixed.person[shares.order], most=2)
    assert len(made) == 10
    assert (np.diff(made.offsets) == 3).all()


def test_rows_in_a_file_and_persons_in_the_wrong_form_are_refused():
    with pytest.raises(BadInput, match="leave out persons"):
        tacit.Dataset.from_loader(lambda _: (X, Y), ["a"], classes=2, test=(X, Y), persons=IDS)
    for persons in (IDS, [IDS], {"a": IDS}):
        with pytest.raises(BadInput, match="2 arrays of ids, one for each client"):
            tacit.Dataset([(X[:30], Y[:30]), (X[30:], Y[30:])], persons=persons, **HOW)
