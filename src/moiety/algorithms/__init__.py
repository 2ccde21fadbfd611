"""One paper, one file. The table is explicit: adding an algorithm is adding a line."""

from collections.abc import Callable

from moiety.algorithms.ditto import ditto
from moiety.algorithms.fedalt import fedalt
from moiety.algorithms.fedavg import fedavg
from moiety.algorithms.fedsim import fedsim
from moiety.algorithms.ffgg import ffgg
from moiety.algorithms.finetune import finetune
from moiety.algorithms.local_ffgg import local_ffgg
from moiety.algorithms.local_only import local_only
from moiety.algorithms.pfedme import pfedme
from moiety.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedalt": fedalt,
    "fedsim": fedsim,
    "local_only": local_only,
    "finetune": finetune,
    "ditto": ditto,
    "pfedme": pfedme,
    "ffgg": ffgg,
    "local_ffgg": local_ffgg,
}

__all__ = [
    "ALGORITHMS",
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
