"""One paper, one file. The table is explicit: adding an algorithm is adding a line."""

from collections.abc import Callable

from moiety.algorithms.apfl import apfl
from moiety.algorithms.central import central
from moiety.algorithms.ditto import ditto
from moiety.algorithms.fedalt import fedalt
from moiety.algorithms.fedavg import fedavg
from moiety.algorithms.fedper import fedper
from moiety.algorithms.fedpop import fedpop
from moiety.algorithms.fedrep import fedrep
from moiety.algorithms.fedsim import fedsim
from moiety.algorithms.fedspa import fedspa
from moiety.algorithms.ffgg import ffgg
from moiety.algorithms.finetune import finetune
from moiety.algorithms.glocal_sgd import glocal_sgd
from moiety.algorithms.independent import independent
from moiety.algorithms.l2gd import l2gd
from moiety.algorithms.lg_fedavg import lg_fedavg
from moiety.algorithms.local_ffgg import local_ffgg
from moiety.algorithms.local_gd import local_gd
from moiety.algorithms.local_only import local_only
from moiety.algorithms.per_fedavg import per_fedavg
from moiety.algorithms.pfedme import pfedme
from moiety.algorithms.scaffold import scaffold
from moiety.algorithms.sub_fedavg import sub_fedavg
from moiety.algorithms.subsampling import subsampling
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
    "scaffold": scaffold,
    "local_gd": local_gd,
    "l2gd": l2gd,
    "glocal_sgd": glocal_sgd,
    "independent": independent,
    "central": central,
    "fedper": fedper,
    "fedpop": fedpop,
    "fedrep": fedrep,
    "lg_fedavg": lg_fedavg,
    "per_fedavg": per_fedavg,
    "apfl": apfl,
    "fedspa": fedspa,
    "sub_fedavg": sub_fedavg,
    "subsampling": subsampling,
}

__all__ = [
    "ALGORITHMS",
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
