"""HTTP: the fast lane that answers predictions from the parser's callbacks, FastAPI for the rest."""
