"""One script for each framework; each runs in an environment of its own."""
