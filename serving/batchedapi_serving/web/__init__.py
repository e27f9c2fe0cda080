"""HTTP: predictions are answered as soon as they are parsed, everything else by FastAPI."""
