"""Commands that run on a laptop and that a replica never imports."""
