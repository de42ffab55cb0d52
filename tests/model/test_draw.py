"""Random pieces: the bits of the whole array, wherever the piece lies, also beyond 2^32 elements."""

import jax
import numpy as np
import pytest
from scipy.special import erfinv

from areca.model.draw import normal_piece


@pytest.mark.parametrize(
    ("corner", "piece"),
    [((0, 0, 0), (5, 6, 7)), ((1, 2, 3), (2, 3, 4)), ((4, 5, 6), (1, 1, 1)), ((0, 3, 0), (5, 3, 7))],
)
def test_a_piece_has_the_bits_of_the_whole(corner, piece):
    key = jax.random.key(3)
    whole = jax.jit(lambda: jax.random.normal(key, (5, 6, 7)))()
    found = jax.jit(lambda: normal_piece(key, (5, 6, 7), corner, piece))()
    here = tuple(slice(c, c + n) for c, n in zip(corner, piece, strict=True))
    np.testing.assert_array_equal(found, whole[here])


def _threefry(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), both words of its output joined by xor."""
    k = [int(key[0]), int(key[1]), int(key[0]) ^ int(key[1]) ^ 0x1BD11BDA]
    x, y = (high + np.uint64(k[0])) % 2**32, (low + np.uint64(k[1])) % 2**32
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = (x + y) % 2**32
            y = ((y << np.uint64(turn)) | (y >> np.uint64(32 - turn))) % 2**32 ^ x
        x = (x + np.uint64(k[(group + 1) % 3])) % 2**32
        y = (y + np.uint64(k[(group + 2) % 3] + group + 1)) % 2**32
    return x ^ y


@pytest.mark.parametrize("row", [0, 50_000, 69_999])
def test_places_beyond_two_to_the_32_are_drawn_as_the_counter_says(row):
    # 70,000 x 70,000 has 4.9e9 elements, 2^32 is 4.29e9; PaLM 540B's embedding has 4.7e9, its gate kernels 1.6e11.
    key, side = jax.random.key(11), 70_000
    found = np.asarray(jax.jit(lambda: normal_piece(key, (side, side), (row, side - 8), (1, 8)))())[0]
    place = np.uint64(row) * np.uint64(side) + np.arange(side - 8, side, dtype=np.uint64)
    bits = _threefry(np.asarray(jax.random.key_data(key)), place >> np.uint64(32), place % 2**32)
    unit = (bits >> np.uint64(9)).astype(np.float64) / 2**23
    np.testing.assert_allclose(found, np.sqrt(2) * erfinv(2 * unit - 1), rtol=2e-5, atol=1e-6)
