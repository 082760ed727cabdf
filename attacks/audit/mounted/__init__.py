"""The attacks of an audit, one file each: the work, what is expected of it, and its section of the report."""
