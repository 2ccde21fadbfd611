"""From many uploads to one change of the server. The names here are the server optimisers."""

from moiety.server.optimisers import SERVERS, adagrad, adam, sgd, yogi

__all__ = ["SERVERS", "adagrad", "adam", "sgd", "yogi"]
