"""The only loops over clients, and the only code with side effects."""

from moiety.engines.fitting import fit
from moiety.engines.making import algorithm_from, split_from
from moiety.engines.resuming import resume
from moiety.engines.run import Run

__all__ = ["Run", "algorithm_from", "fit", "resume", "split_from"]
