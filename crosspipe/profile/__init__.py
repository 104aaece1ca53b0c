"""WHERE the numbers come from: the link benchmark (mpi4py) and the block profiler (torch).

Nothing is imported here: each profiler loads only what it needs, and a laptop may have just one of the two.
"""
