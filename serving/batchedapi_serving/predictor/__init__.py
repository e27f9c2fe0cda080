"""The user's class: how it is declared, found, started and warmed up."""
