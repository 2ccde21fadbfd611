"""One paper, one file. Adding an algorithm is adding a line here: all else reads ``ALGORITHMS``."""

from collections.abc import Callable

from moiety.algorithms.apfl import apfl as apfl
from moiety.algorithms.central import central as central
from moiety.algorithms.ditto import ditto as ditto
from moiety.algorithms.fedalt import fedalt as fedalt
from moiety.algorithms.fedavg import fedavg as fedavg
from moiety.algorithms.fedper import fedper as fedper
from moiety.algorithms.fedpop import fedpop as fedpop
from moiety.algorithms.fedrep import fedrep as fedrep
from moiety.algorithms.fedsim import fedsim as fedsim
from moiety.algorithms.fedspa import fedspa as fedspa
from moiety.algorithms.ffgg import ffgg as ffgg
from moiety.algorithms.finetune import finetune as finetune
from moiety.algorithms.glocal_sgd import glocal_sgd as glocal_sgd
from moiety.algorithms.independent import independent as independent
from moiety.algorithms.l2gd import l2gd as l2gd
from moiety.algorithms.lg_fedavg import lg_fedavg as lg_fedavg
from moiety.algorithms.local_ffgg import local_ffgg as local_ffgg
from moiety.algorithms.local_gd import local_gd as local_gd
from moiety.algorithms.local_only import local_only as local_only
from moiety.algorithms.per_fedavg import per_fedavg as per_fedavg
from moiety.algorithms.pfedme import pfedme as pfedme
from moiety.algorithms.scaffold import scaffold as scaffold
from moiety.algorithms.sub_fedavg import sub_fedavg as sub_fedavg
from moiety.algorithms.subsampling import subsampling as subsampling
from moiety.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    name: value for name, value in list(globals().items()) if getattr(value, "__module__", "") == f"{__name__}.{name}"
}
"""The builders above by name."""
