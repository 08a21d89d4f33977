"""What a model reads besides a problem: conversations, and later pages of a corpus."""
