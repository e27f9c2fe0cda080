"""From an observed API and its children to the writes that bring them together."""
