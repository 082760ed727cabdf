"""What the adversary holds: of simulated rounds, of captures, and what it may know already."""
