"""moiety."""
