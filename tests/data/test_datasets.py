"""Data sets of torch and tables of Hugging Face become the columns that one would write by hand."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import moiety as mo
from moiety.errors import MoietyError


class Pictures(Dataset):
    """Items as a dict, made by a transform when they are asked for."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        return {"image": np.full((2, 2), i, dtype=np.uint8), "label": i % 2, "path": f"{i}.png"}


class Table:
    """What moiety looks at in a table of Hugging Face: its length, its column names and its columns."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]


class Words:
    """A tokenizer in the manner of transformers: a word is its length."""

    def __call__(self, texts, *, truncation, padding, max_length, return_tensors):
        assert (truncation, padding, return_tensors) == (True, True, "np")
        rows = [[len(word) for word in text.split()][:max_length] for text in texts]
        width = max(map(len, rows))
        ids = np.array([row + [0] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).astype(int)}


def test_a_torch_data_set_for_each_client():
    x, y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    fed = mo.data.from_datasets({"ann": TensorDataset(x[:4], y[:4]), "bob": TensorDataset(x[4:], y[4:])}, test=0)
    assert list(map(str, fed.ids)) == ["ann", "bob"]
    np.testing.assert_array_equal(fed.client("bob")["x"], x[4:].numpy())
    np.testing.assert_array_equal(fed.client("ann")["y"], y[:4].numpy())


def test_items_that_are_dicts_get_new_names_and_the_rest_is_left_out():
    data = mo.data.from_datasets({0: Pictures(3), 1: Pictures(2)}, columns={"image": "x", "label": "y"}, test=0)
    assert sorted(data.columns) == ["x", "y"]
    assert data.client(0)["x"][2].tolist() == [[2, 2], [2, 2]]
    assert data.columns["x"].dtype == np.uint8


def test_a_table_with_a_client_column():
    table = Table(feature=[[1.0], [2.0], [3.0]], label=[0, 1, 0], speaker=["b", "a", "b"])
    fed = mo.data.from_datasets(table, client="speaker", columns={"feature": "x", "label": "y"}, test=0)
    assert list(map(str, fed.ids)) == ["a", "b"]
    assert fed.client("b")["x"].ravel().tolist() == [1.0, 3.0]


def test_a_table_dealt_by_a_partition_is_the_partition_of_its_rows():
    x, y = np.arange(40.0)[:, None], np.arange(40) % 4
    table = Table(x=x, y=y)
    fed = mo.data.from_datasets(table, partition=mo.data.shards(1), clients=4, test=0)
    rows = np.concatenate([fed.client(i)["x"].ravel() for i in range(4)])
    assert sorted(rows.tolist()) == list(range(40))
    assert all(len(set(fed.client(i)["y"].tolist())) == 1 for i in range(4))  # a shard of sorted labels


def test_texts_of_all_clients_have_one_width():
    clients = {"a": Table(text=["one two", "x"], y=[0, 1]), "b": Table(text=["a bb ccc dddd", "yes"], y=[1, 0])}
    fed = mo.data.from_datasets(clients, text="text", tokenizer=Words(), max_length=3, test=0)
    assert fed.client("a")["input_ids"].tolist() == [[3, 3, 0], [1, 0, 0]]
    assert fed.client("b")["input_ids"].tolist() == [[1, 2, 3], [3, 0, 0]]
    assert fed.client("b")["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


class Folder(Pictures):
    """A data set that knows the names of its classes, as torchvision's folders do."""

    def __init__(self, rows, classes):
        super().__init__(rows)
        self.classes = classes


def test_labels_of_the_same_name_are_the_same_label():
    folders = {"a": Folder(4, ["cat", "owl"]), "b": Folder(3, ["bat", "cat"])}
    fed = mo.data.from_datasets(folders, columns={"image": "x", "label": "y"}, test=0)
    assert fed.class_names == ("bat", "cat", "owl")
    assert [fed.class_names[k] for k in fed.client("a")["y"]] == ["cat", "owl", "cat", "owl"]
    assert [fed.class_names[k] for k in fed.client("b")["y"]] == ["bat", "cat", "bat"]
    alike = {"a": Folder(4, ["owl", "cat"]), "b": Folder(3, ["owl", "cat"])}
    fed = mo.data.from_datasets(alike, columns={"image": "x", "label": "y"}, test=0)
    assert fed.class_names == ("owl", "cat")  # in the order of the data set
    assert fed.client("a")["y"].tolist() == [0, 1, 0, 1]


def test_texts_as_labels_become_classes_and_predictions_are_names(tmp_path):
    kinds = ["well", "ill", "well", "ill", "10", "9"] * 5
    x = np.array([[1.0, 0.0], [0.0, 1.0]] * 15, dtype="float32")
    fed = mo.data.from_datasets(Table(x=x, y=kinds, site=["a", "b", "c"] * 10), client="site", seed=1)
    assert fed.class_names == ("10", "9", "ill", "well")
    model = torch.nn.Linear(2, 4)
    run = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1)
    assert set(run.predict("a", x[:3]).tolist()) <= set(fed.class_names)
    fed.save(tmp_path / "saved")
    assert mo.data.open_folder(tmp_path / "saved").class_names == fed.class_names
    other = mo.data.from_datasets(Table(x=x, y=kinds), partition=mo.data.classes_per_client(2), clients=2, seed=1)
    assert other.class_names == fed.class_names


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: mo.data.from_datasets({"a": TensorDataset(torch.zeros(2, 1))}), "1 names, one for each entry"),
        (lambda: mo.data.from_datasets(Table(x=[1.0], y=[0])), "given, or a partition"),
        (lambda: mo.data.from_datasets(Table(x=[1.0], y=[0]), client="who"), "columns of the data"),
        (lambda: mo.data.from_datasets({"a": Table(x=[[1.0], [1.0, 2.0]], y=[0, 1])}), "of one shape in every row"),
        (lambda: mo.data.from_datasets({"a": 3}), "with a length and items"),
        (lambda: mo.data.from_datasets({"a": []}), "at least one item"),
        (lambda: mo.data.from_datasets({"a": [3.0]}), "items that are tuples or dicts"),
        (lambda: mo.data.from_datasets(Table(x=[1.0]), partition=3, clients=1), "such as iid"),
        (lambda: mo.data.from_datasets({"a": Table(t=["x", 3], y=[0, 1])}, text="t", tokenizer=Words()), "in row 1"),
        (lambda: mo.data.from_datasets({"a": Table(t=["x"])}, text="t"), "given with text"),
    ],
)
def test_what_is_wrong_is_one_line(call, line):
    with pytest.raises(MoietyError, match=line) as error:
        call()
    assert "\n" not in str(error.value)
