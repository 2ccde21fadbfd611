"""What a user calls: ``fit``, ``resume``, ``pipeline``, and the run that they return."""
