"""A model as pure functions of parameters and a batch: calling it, its losses and metrics, cutting it, vmap."""

from moiety.task.module import Loss, Metrics, backprop_bytes, dtype_of, from_functions, from_module, mixes

__all__ = ["Loss", "Metrics", "backprop_bytes", "dtype_of", "from_functions", "from_module", "mixes"]
