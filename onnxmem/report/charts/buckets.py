"""Many steps in few buckets of neighbours."""

from collections.abc import Iterator


def buckets(num_steps: int, num_buckets: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of steps, as equal as can be: none is empty, together they are all steps."""
    num_buckets = min(num_steps, num_buckets)
    for number in range(num_buckets):
        start = number * num_steps // num_buckets
        yield start, (number + 1) * num_steps // num_buckets
