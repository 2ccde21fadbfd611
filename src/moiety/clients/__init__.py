"""Clients as the simulation sees them: who is asked, and where their own state lives."""

from moiety.clients.cohorts import bernoulli_cohort, uniform_cohort
from moiety.clients.store import DiskStore, Store

__all__ = ["DiskStore", "Store", "bernoulli_cohort", "uniform_cohort"]
