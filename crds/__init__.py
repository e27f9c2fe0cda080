"""Writes every generated file from its one source: the models, the contract, the chart's values."""
