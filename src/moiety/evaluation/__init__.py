"""How well each client is served: rows per client, their summary, and calibration."""

from moiety.evaluation import calibration
from moiety.evaluation.per_client import Row, client_rows, summarise, summarise_sets, worst_decile

__all__ = ["Row", "calibration", "client_rows", "summarise", "summarise_sets", "worst_decile"]
