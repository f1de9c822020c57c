"""Where workers run: the local machine now, cluster engines behind the same calls."""
