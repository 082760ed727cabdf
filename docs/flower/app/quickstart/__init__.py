"""A Flower app: softmax regression on handwritten digits."""
