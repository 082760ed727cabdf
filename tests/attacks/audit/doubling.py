"""Work for other processes that needs nothing imported."""


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    raise ValueError(f"job {number}")
