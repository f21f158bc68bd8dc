"""What `prune` and `quantize` share: calibration and held-out batches, predicted beside measured, models on disk."""
