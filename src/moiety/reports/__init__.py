"""Tables and figures from rows. Import from the modules."""
