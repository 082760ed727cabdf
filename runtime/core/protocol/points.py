"""Which public keys bind their owner: points of edwards25519, told without loading a library."""

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_SMALL_ORDER = frozenset(
    (
        0,
        1,
        _P - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    )
)
"""The second coordinates of the points of edwards25519 whose order divides 8, whatever their sign."""


def key_problem(key: bytes) -> str:
    """What is wrong with an Ed25519 public key, or nothing. OpenSSL takes any of them, so we look first.

    With a key of small order a signature says nothing: whoever likes can make one that holds, for any message.
    A key with two encodings could stand on a roster twice.
    """
    y = int.from_bytes(key, "little") & (1 << 255) - 1
    if y >= _P:
        return "is not in canonical form"
    if y in _SMALL_ORDER:
        return "is a point of small order, in whose name anybody can sign"
    square = (y * y - 1) * (_D * y * y + 1) % _P  # of x, but for a factor that is a square itself
    if pow(square, (_P - 1) // 2, _P) != 1:
        return "is not a point of the curve"
    return ""
