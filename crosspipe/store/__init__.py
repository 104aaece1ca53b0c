"""Artifacts: typed files, timelines in Parquet, and the store that holds them under content keys."""

from crosspipe.store.claims import Claim, my_claim
from crosspipe.store.files import load, save
from crosspipe.store.records import Iteration, Rank, RunRecord, Swap
from crosspipe.store.request import Request
from crosspipe.store.store import Done, Making, Store, TakenOver
from crosspipe.store.timelines import read_timelines, write_timelines

__all__ = [
    "Claim",
    "Done",
    "Iteration",
    "Making",
    "Rank",
    "Request",
    "RunRecord",
    "Store",
    "Swap",
    "TakenOver",
    "load",
    "my_claim",
    "read_timelines",
    "save",
    "write_timelines",
]
