"""One program per entrant: each runs in a process, and where need be an environment, of its own."""
