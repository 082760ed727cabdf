"""`silomix check`: everything that a node needs, looked at on its own host before it is started, and while it runs."""
