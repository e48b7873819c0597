"""Fine-tune Chinese sentence-similarity models with the CoSENT family."""

__version__ = "0.1.0"
