"""Data that lives in the repository, and the programs that wrote it."""
