"""The roles that a drill plays itself: an aggregator, a hop and a member who lie, and what they make bodies with."""
