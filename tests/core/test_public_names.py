import subprocess
import sys

import pytest

import moiety

PUBLIC = [
    "Algorithm",
    "FederatedData",
    "Metric",
    "MoietyError",
    "Run",
    "Settings",
    "Split",
    "Stage",
    "Task",
    "advise",
    "aggregator",
    "apfl",
    "attack",
    "central",
    "clock",
    "codec",
    "data",
    "diagnose_split",
    "ditto",
    "fedalt",
    "fedavg",
    "fedper",
    "fedpop",
    "fedrep",
    "fedsim",
    "fedspa",
    "ffgg",
    "fictitious_play",
    "finetune",
    "fit",
    "glocal_erm",
    "glocal_sgd",
    "independent",
    "kernel",
    "l2gd",
    "lg_fedavg",
    "local_ffgg",
    "local_gd",
    "local_only",
    "models",
    "per_fedavg",
    "pfedme",
    "pipeline",
    "prior",
    "resume",
    "scaffold",
    "schedule",
    "server",
    "solver",
    "split",
    "sub_fedavg",
    "subsampling",
]


def test_the_public_names_are_these():
    assert moiety.__all__ == PUBLIC
    assert dir(moiety) == sorted([*PUBLIC, "__version__"])


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    assert getattr(moiety, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="fedalt2"):
        _ = moiety.fedalt2


def test_algorithms_by_their_public_names():
    from moiety.algorithms import ALGORITHMS

    assert sorted(ALGORITHMS) == [
        "apfl",
        "central",
        "ditto",
        "fedalt",
        "fedavg",
        "fedper",
        "fedpop",
        "fedrep",
        "fedsim",
        "fedspa",
        "ffgg",
        "finetune",
        "glocal_sgd",
        "independent",
        "l2gd",
        "lg_fedavg",
        "local_ffgg",
        "local_gd",
        "local_only",
        "per_fedavg",
        "pfedme",
        "scaffold",
        "sub_fedavg",
        "subsampling",
    ]
    assert all(getattr(moiety, name) is builder for name, builder in ALGORITHMS.items())


def test_importing_does_not_import_torch():
    heavy = ("torch", "numpy", "sklearn", "pyarrow", "pydantic", "safetensors")
    code = f"import sys, moiety; dir(moiety); print([m for m in {heavy} if m in sys.modules], moiety.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", moiety.__version__]


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert version("moiety") == moiety.__version__
