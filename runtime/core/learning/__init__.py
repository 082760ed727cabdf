"""What becomes of training: a silo's update, the server's rules, noise and the privacy it buys."""
