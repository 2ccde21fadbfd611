"""The verbs and values of local work: what a client does in its turn."""
