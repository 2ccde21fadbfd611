"""Data of many clients: where it comes from, how it is dealt and split, and how it is stored."""

from typing import TYPE_CHECKING, Any

from moiety.data.build import from_arrays, from_clients
from moiety.data.datasets import from_datasets, tokenise
from moiety.data.federated import FederatedData, open_folder
from moiety.data.fetching import fetch
from moiety.data.load import from_spec, load
from moiety.data.partition import PARTITIONS, Partition, classes_per_client, dirichlet, iid, natural, quantity, shards
from moiety.data.preprocess import Feature, Preprocessing
from moiety.data.sources import SOURCES
from moiety.data.tasks import binary_tasks, principal_components
from moiety.data.weights import class_weights

if TYPE_CHECKING:
    from moiety.data.frame import from_frame as from_frame

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Feature",
    "FederatedData",
    "Partition",
    "Preprocessing",
    "binary_tasks",
    "class_weights",
    "classes_per_client",
    "dirichlet",
    "fetch",
    "from_arrays",
    "from_clients",
    "from_datasets",
    "from_frame",
    "from_spec",
    "iid",
    "load",
    "natural",
    "open_folder",
    "principal_components",
    "quantity",
    "shards",
    "tokenise",
]


def __getattr__(name: str) -> Any:
    """Look ``from_frame`` up when it is first used: it loads pyarrow, which lists of data sets do without."""
    if name == "from_frame":
        from moiety.data.frame import from_frame

        return from_frame
    raise AttributeError(f"module 'moiety.data' has no attribute {name!r}")
