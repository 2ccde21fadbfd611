"""Questions asked of a problem or of runs: which algorithm, who is hurt, at what cost. Import from the modules."""
