"""Tables of Hugging Face, partitioners of flwr-datasets and folders of torchvision, as these libraries make them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import moiety as mo
from moiety.errors import MoietyError

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0"}
datasets = pytest.importorskip("datasets")
partitioners = pytest.importorskip("flwr_datasets.partitioner")

ROWS = 60
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (ROWS, 8, 8, 3)).astype(np.uint8)
VECTORS = RNG.normal(size=(ROWS, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, ROWS)
SPEAKERS = [f"s{i % 4}" for i in range(ROWS)]
KINDS = ["owl", "cat", "dog"]  # not in the order of the alphabet
NEW = {"vector": "x", "kind": "y"}


@pytest.fixture(scope="module")
def table() -> Any:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "vector": datasets.Sequence(datasets.Value("float32"), length=3),
            "kind": datasets.ClassLabel(names=KINDS),
            "speaker": datasets.Value("string"),
        }
    )
    pictures = [Image.fromarray(picture) for picture in PIXELS]
    columns = {"image": pictures, "vector": VECTORS.tolist(), "kind": LABELS.tolist(), "speaker": SPEAKERS}
    return datasets.Dataset.from_dict(columns, features=features)


def rows_of(fed: mo.FederatedData, client: str | int) -> list[int]:
    """Which rows of the table a client has, found by their vectors."""
    places = [int(np.flatnonzero((row == VECTORS).all(axis=1))[0]) for row in fed.client(client)["x"]]
    assert fed.client(client)["y"].tolist() == LABELS[places].tolist()
    return places


def test_a_column_names_the_client(table: Any) -> None:
    fed = mo.data.from_datasets(table, client="speaker", columns=NEW, test=0)
    assert [str(each) for each in fed.ids] == ["s0", "s1", "s2", "s3"]
    assert fed.columns["x"].dtype == np.float32
    assert fed.class_names == tuple(KINDS)
    for k, name in enumerate(fed.ids):
        assert sorted(rows_of(fed, str(name))) == list(range(k, ROWS, 4))


def test_pictures_become_arrays(table: Any) -> None:
    fed = mo.data.from_datasets(table, client="speaker", columns={"image": "x", "kind": "y"}, test=0)
    np.testing.assert_array_equal(fed.client("s1")["x"], PIXELS[1::4])


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_a_format_that_was_chosen_stays(table: Any, form: str) -> None:
    fed = mo.data.from_datasets(table.with_format(form), client="speaker", columns=NEW, test=0)
    assert sorted(rows_of(fed, "s2")) == list(range(2, ROWS, 4))


def test_a_transform_is_applied(table: Any) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        pictures = [np.asarray(each, dtype=np.float32).transpose(2, 0, 1) / 255 for each in batch["image"]]
        return {"x": pictures, "y": batch["kind"], "speaker": batch["speaker"]}

    fed = mo.data.from_datasets(table.with_transform(change), client="speaker", test=0)
    assert sorted(fed.columns) == ["x", "y"]
    np.testing.assert_array_equal(fed.client("s3")["x"], (PIXELS[3::4].astype(np.float32) / 255).transpose(0, 3, 1, 2))


def test_a_partition_of_moiety_deals_its_rows(table: Any) -> None:
    fed = mo.data.from_datasets(table, partition=mo.data.classes_per_client(1), clients=3, columns=NEW, test=0)
    assert sorted(row for k in range(3) for row in rows_of(fed, k)) == list(range(ROWS))
    assert all(len(set(fed.client(k)["y"].tolist())) == 1 for k in range(3))


PARTITIONERS = {
    "iid": lambda: partitioners.IidPartitioner(num_partitions=4),
    "dirichlet": lambda: partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="kind", alpha=0.5, min_partition_size=2
    ),
    "pathological": lambda: partitioners.PathologicalPartitioner(
        num_partitions=3, partition_by="kind", num_classes_per_partition=2
    ),
    "shards": lambda: partitioners.ShardPartitioner(num_partitions=3, partition_by="kind", num_shards_per_partition=2),
    "sizes": lambda: partitioners.LinearPartitioner(num_partitions=3),
}


@pytest.mark.filterwarnings(
    "ignore:Specifying null_placement:FutureWarning"
)  # datasets sorts with pyarrow's old option
@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_partitioner_of_flwr_datasets(table: Any, name: str) -> None:
    fed = mo.data.from_datasets(table, partition=PARTITIONERS[name](), columns=NEW, test=0)
    oracle = PARTITIONERS[name]()
    oracle.dataset = table
    assert len(fed) == oracle.num_partitions
    for k in range(oracle.num_partitions):
        part = oracle.load_partition(k)
        np.testing.assert_array_equal(np.sort(fed.client(k)["x"], axis=0), np.sort(part["vector"][:], axis=0))
        assert sorted(fed.client(k)["y"].tolist()) == sorted(part["kind"][:])


def test_a_partitioner_by_names_keeps_them_and_may_be_used_twice(table: Any) -> None:
    natural = partitioners.NaturalIdPartitioner(partition_by="speaker")
    for _ in range(2):
        fed = mo.data.from_datasets(table, partition=natural, columns=NEW, test=0)
        assert [str(each) for each in fed.ids] == ["s0", "s1", "s2", "s3"]
        assert sorted(rows_of(fed, "s1")) == list(range(1, ROWS, 4))
    with pytest.raises(MoietyError, match=r"`partition` must be a partitioner of this data.*Make a new one\.$"):
        mo.data.from_datasets(table.select(range(9)), partition=natural, columns=NEW)


def test_a_run_on_a_table_predicts_names(table: Any) -> None:
    fed = mo.data.from_datasets(table, client="speaker", columns=NEW, seed=0)
    model = mo.models.mlp(3, 3, hidden=(4,), seed=0)
    run = mo.fit(model, fed, mo.fedalt(shared=0.1, personal=0.1), split=mo.split.output_layer(model), rounds=2)
    assert set(run.predict("s0", VECTORS).tolist()) <= set(KINDS)


def test_texts_go_through_a_tokenizer(table: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: k for k, word in enumerate(["[PAD]", "[UNK]", "it", "is", "late"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
    texts = datasets.Dataset.from_dict(
        {"text": ["it is late", "is it", "no", "late"], "y": [0, 1, 0, 1], "who": [1, 1, 2, 2]}
    )
    fed = mo.data.from_datasets(texts, client="who", text="text", tokenizer=tokenizer, test=0)
    assert fed.client("1")["input_ids"].tolist() == [[2, 3, 4], [3, 2, 0]]
    assert fed.client("2")["attention_mask"].tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: datasets.DatasetDict(train=table), r'one with splits. Choose one, as in data\["train"\]'),
        (lambda table: table.to_iterable_dataset(), "with a length and items, got IterableDataset"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(table: Any, change: Any, says: str) -> None:
    with pytest.raises(MoietyError, match=says):
        mo.data.from_datasets(change(table), client="speaker", columns=NEW)


def test_folders_of_pictures_for_each_client(tmp_path: Path) -> None:
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    kinds = {"ann": ["cat", "owl"], "bob": ["bat", "cat"]}
    for client, own in kinds.items():
        for k, kind in enumerate(own):
            (tmp_path / client / kind).mkdir(parents=True)
            for i in range(3):
                picture = Image.fromarray(np.full((6, 6, 3), 10 * i + k, dtype=np.uint8))
                picture.save(tmp_path / client / kind / f"{i}.png")
    folders = {client: ImageFolder(str(tmp_path / client), transforms.ToTensor()) for client in kinds}
    fed = mo.data.from_datasets(folders, test=0)
    assert fed.class_names == ("bat", "cat", "owl")
    assert fed.columns["x"].shape == (12, 3, 6, 6)
    for client, own in kinds.items():
        rows = fed.client(client)
        pairs = [(fed.class_names[y], round(float(x.max()) * 255)) for x, y in zip(rows["x"], rows["y"], strict=True)]
        assert sorted(pairs) == sorted((kind, 10 * i + k) for k, kind in enumerate(own) for i in range(3))
    assert fed.columns["x"].dtype == torch.zeros(1).numpy().dtype
