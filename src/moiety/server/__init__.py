"""From many uploads to one change of the server."""

from moiety.server.averaging import Server, broadcast, init_server, server_update
from moiety.server.mean import WEIGHTINGS, check_weighting, client_weight, weighted_mean, weighted_sum
from moiety.server.optimisers import SERVERS, adagrad, adam, sgd, yogi

__all__ = [
    "SERVERS",
    "WEIGHTINGS",
    "Server",
    "adagrad",
    "adam",
    "broadcast",
    "check_weighting",
    "client_weight",
    "init_server",
    "server_update",
    "sgd",
    "weighted_mean",
    "weighted_sum",
    "yogi",
]
