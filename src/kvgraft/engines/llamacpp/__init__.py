"""The llama.cpp engine: GGUF models on the CPU. Only this package imports llama_cpp."""
