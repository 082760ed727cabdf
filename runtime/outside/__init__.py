"""A protected sum that another program drives: vectors in at silos, their mean and weight out at the aggregator.

    outside.create(directory, silos, shufflers, values)    write a federation whose silos sum vectors of so many values
    outside.Silo(directory).submit(vector, round)          at a silo: hand in its vector
    outside.Aggregator(directory).result(round)            at the aggregator: open a round, and wait for its sum
    outside.submit(directory, vector, round)               the same from another process of the silo's host
    outside.Together(directory)                            all nodes in this process

docs/outside.md has it with an example.
"""

from silomix.runtime.outside.aggregator import Aggregator, NoSum, Sum
from silomix.runtime.outside.door import Door, submit
from silomix.runtime.outside.question import create
from silomix.runtime.outside.silo import NotInSum, Silo
from silomix.runtime.outside.together import Together

__all__ = ["Aggregator", "Door", "NoSum", "NotInSum", "Silo", "Sum", "Together", "create", "submit"]
