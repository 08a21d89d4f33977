"""The transformers engine: PyTorch on CPU or CUDA. Only this package imports torch."""
