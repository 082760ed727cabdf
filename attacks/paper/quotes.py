"""The paper's communication figures, quoted: the only numbers of a report that are typed and not computed.

Decimals are strings, because how many the paper prints says how closely ours must match. Names are the paper's labels.
"""

FINDINGS = (
    ("CNN, MNIST", 3, "1.04"),
    ("CNN, CIFAR-10", 5, "1.81"),
    ("ResNet, CIFAR-100", 5, "1.81"),
    ("MLP, Synthetic", 4, "1.28"),
    ("CNN, HAR", 4, "1.28"),
    ("Transformer, Newsgroups", 4, "1.28"),
)
"""Table sum_of_findings: model and data, r, expansion for 10 clients."""
FULL_MATCH = ("ResNet, CIFAR-100, vanilla accuracy", 8, "2.4")
FULL_MATCH_RLE = ("ResNet, CIFAR-100, the same with RLE", 8, "1.03")
"""Figure expansion_factor with its text; that vanilla accuracy takes r = 8 comes from the text on accuracy."""
INT8_FACTOR = "1.28"
"""Text on transformers: expansion of an 8-bit BERT. It does not say for how many clients: 10, as elsewhere."""
MORE_CLIENTS = (
    (1000, 8, 36926, 160, 43, 32),
    (10000, 8, 399920, 160, 42, 32),
    (1000, 12, 49900, 281, 61, 32),
    (10000, 12, 539892, 328, 67, 32),
    (1000, 16, 63872, 381, 73, 32),
    (10000, 16, 669866, 440, 79, 32),
)
"""Table comm_cost_more_clients: clients, r, Secure Aggregation, Alg. 1, Alg. 1 + RLE, vanilla."""
EXTRA_BITS = ((4, 23), (8, 78))
"""Text on figure comm_cost: r, about how many bits more than vanilla, up to 20 clients."""
SA_CHEAPER_BELOW: tuple[tuple[int, int | str], ...] = ((4, "never"), (8, 5))
"""Text on figure comm_cost: r, the number of clients below which Secure Aggregation costs less."""
LARGEST_CASE = (10000, 16, 440, 79, 83)
"""Text: clients, r, bits of Alg. 1, bits with RLE, about so many KB for Secure Aggregation."""
EXPANSION_SILOS = 10
"""Clients of the expansion factors."""
ZOOM = range(2, 21)
"""The clients of the zoomed figure."""
