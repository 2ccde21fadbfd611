"""All that can be given to an algorithm as ``shared=`` or ``personal=``, by the names that a file uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moiety.local.adam import adam, adamw
from moiety.local.kernels import KERNELS
from moiety.local.online import online
from moiety.local.sgd import sgd
from moiety.local.solvers import SOLVERS

LOCAL_WORK: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "online": online,
    **SOLVERS,
    **KERNELS,
}
