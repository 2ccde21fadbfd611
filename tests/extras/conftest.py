"""Tests that need heavy libraries. ``make test-extras`` runs them; ``make test`` passes them over.

Where torchvision's compiled part does not load, two operators that it describes at import do not exist; their schemas
are defined before anything imports it.
"""

import os
from contextlib import suppress

import torch

if os.environ.get("MOIETY_EXTRAS"):
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        with suppress(RuntimeError):
            _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
else:
    collect_ignore_glob = ["*.py"]
