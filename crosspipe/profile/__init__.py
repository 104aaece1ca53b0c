"""WHERE the numbers come from: the link benchmark (mpi4py) and the block profiler (torch); each imports only its own."""
