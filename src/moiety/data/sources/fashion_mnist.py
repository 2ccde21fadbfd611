"""Fashion-MNIST."""

from __future__ import annotations

from moiety.data.sources._files import Source, images, train_and_test


def fashion_mnist() -> Source:
    """Pictures of clothes, 60,000 and 10,000 for testing, x [1, 28, 28] from 0 to 1, 10 classes."""
    return train_and_test("fashion_mnist.npz", (28, 28), 10, images)
