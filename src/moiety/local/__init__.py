"""The verbs and values of local work: what a client does in its turn, and the states that it keeps."""

from moiety.local.descent import continue_training, train
from moiety.local.online import Online, online_work, project_to_ball
from moiety.local.sgd import ALL, WHOLE, Kept, Optimiser, Sgd, check_rate, optimiser_work, sgd_work
from moiety.local.solvers import Solver, draw_start, solver_work
from moiety.local.states import OwnModel, Personal, begin_own_model, begin_personal, keep_own_model, own_model
from moiety.local.verbs import (
    add_prefix,
    apply_masks,
    clip_gradients,
    count_rows,
    difference,
    fold,
    from_vector,
    gradient_at,
    gradient_over_samples,
    mean_loss,
    mean_metric,
    select,
    take_floats,
    take_prefix,
    to_vector,
)

__all__ = [
    "ALL",
    "WHOLE",
    "Kept",
    "Online",
    "Optimiser",
    "OwnModel",
    "Personal",
    "Sgd",
    "Solver",
    "add_prefix",
    "apply_masks",
    "begin_own_model",
    "begin_personal",
    "check_rate",
    "clip_gradients",
    "continue_training",
    "count_rows",
    "difference",
    "draw_start",
    "fold",
    "from_vector",
    "gradient_at",
    "gradient_over_samples",
    "keep_own_model",
    "mean_loss",
    "mean_metric",
    "online_work",
    "optimiser_work",
    "own_model",
    "project_to_ball",
    "select",
    "sgd_work",
    "solver_work",
    "take_floats",
    "take_prefix",
    "to_vector",
    "train",
]
