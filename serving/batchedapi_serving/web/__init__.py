"""HTTP: the fast lane answers predictions from the parser's callbacks, FastAPI the rest."""
