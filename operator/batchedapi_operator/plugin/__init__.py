"""`kubectl batchedapi`: found by kubectl as `kubectl-batchedapi` on the PATH."""
