"""Other servers' configuration as manifests and classes to fill in; pure: texts in, texts out.

cortex | bentoml | kserve | torchserve | triton ── formats ── migration
"""
