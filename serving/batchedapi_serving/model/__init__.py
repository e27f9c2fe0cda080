"""The model process: user code runs here and nowhere else."""
