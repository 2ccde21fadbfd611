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
    "Split",
    "Task",
    "advise",
    "aggregator",
    "attack",
    "codec",
    "data",
    "ditto",
    "fedalt",
    "fedavg",
    "fedsim",
    "ffgg",
    "finetune",
    "fit",
    "local_ffgg",
    "local_only",
    "models",
    "pfedme",
    "pipeline",
    "resume",
    "schedule",
    "server",
    "solver",
    "split",
    "stage",
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
        "ditto",
        "fedalt",
        "fedavg",
        "fedsim",
        "ffgg",
        "finetune",
        "local_ffgg",
        "local_only",
        "pfedme",
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
