"""A campaign on a Slurm cluster: arrays and batch scripts, the journal of what was submitted, what Slurm says of it.

The jobs' body is that of every other machine (`crosspipe.campaign.job`); here is what brings it to a cluster and back.
"""
