"""Other servers' files as a manifest and a predictor; pure: texts in, texts out.

cortex | bentoml | kserve | torchserve | triton ── migration
"""
