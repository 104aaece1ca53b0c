"""Artifacts: typed files, timelines in Parquet, and the store that holds them under content keys."""

from crosspipe.store.files import load, save
from crosspipe.store.records import Iteration, Rank, RunRecord
from crosspipe.store.timelines import read_timelines, write_timelines

__all__ = ["Iteration", "Rank", "RunRecord", "load", "read_timelines", "save", "write_timelines"]
