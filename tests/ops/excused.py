"""Operators that no single-operator case can check, and the test file that checks each instead."""

_RANDOM = (
    "uniform_random gaussian_random truncated_gaussian_random uniform_random_batch_size_like "
    "gaussian_random_batch_size_like randint randperm shuffle_batch shuffle_batch_grad sampling_id"
)

CHECKED_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(_RANDOM.split(), "ops/test_random.py"),
}
