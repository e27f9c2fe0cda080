"""Acts on the cluster: reconciles BatchedAPIs, scales them from their batch histograms."""
