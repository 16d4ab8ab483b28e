"""Input sets: how many, how large, and what is said when they are too few."""

import pytest
import torch

from weft.machine import rotation as inputs
from weft.machine.rotation import MOST_SETS, cache_bytes, memory_bytes, rotation, touched_bytes

KIB = 1 << 10


def make_of(size: int):
    return lambda: (torch.empty(size, dtype=torch.uint8), 2.0)


def test_sets_exceed_the_cache_three_times() -> None:
    chosen = rotation(make_of(10 * KIB), "cold", cache=64 * KIB, memory=1 << 30)
    assert len(chosen.sets) == 20
    assert chosen.bytes == 200 * KIB >= 3 * 64 * KIB
    assert chosen.notes == ()


def test_two_sets_at_least() -> None:
    assert len(rotation(make_of(1024 * KIB), "cold", cache=4 * KIB, memory=1 << 30).sets) == 2


def test_memory_bounds_the_sets_and_is_mentioned() -> None:
    chosen = rotation(make_of(10 * KIB), "cold", cache=64 * KIB, memory=50 * KIB)
    assert len(chosen.sets) == 5
    assert "51200 bytes; 196608 would be needed" in chosen.notes[0]
    alone = rotation(make_of(1024 * KIB), "cold", cache=4 * KIB, memory=10 * KIB)
    assert len(alone.sets) == 1
    assert "one input set alone" in alone.notes[0]


def test_tiny_sets_are_bounded_in_number() -> None:
    chosen = rotation(make_of(1), "cold", cache=1 << 20, memory=1 << 30)
    assert len(chosen.sets) == MOST_SETS
    assert chosen.notes


def test_hot_needs_one_set_and_no_remark() -> None:
    chosen = rotation(make_of(16), "hot", cache=1 << 20, memory=1 << 30)
    assert (len(chosen.sets), chosen.notes) == (1, ())


def test_sets_that_are_given_are_used_as_they_are() -> None:
    given = [(torch.empty(4, dtype=torch.uint8),), (torch.empty(4, dtype=torch.uint8),)]
    chosen = rotation(given, "cold", cache=KIB, memory=1 << 30)
    assert chosen.sets == tuple(given)
    assert "8 bytes; 3072 would be needed" in chosen.notes[0]


def test_arguments_without_tensors_need_no_rotation() -> None:
    assert len(rotation(lambda: (1, 2), "cold", cache=KIB, memory=1 << 30).sets) == 1


def test_shared_and_expanded_tensors_count_what_they_touch() -> None:
    weight = torch.empty(100)
    expanded = torch.empty(10).expand(1000, 10)
    assert touched_bytes([(weight, expanded), (weight,)]) == 4 * (100 + 10)


def test_one_set_is_not_taken_for_many() -> None:
    with pytest.raises(TypeError, match="not of tensors"):
        rotation([torch.empty(4), torch.empty(4)], "cold", cache=KIB, memory=KIB)
    with pytest.raises(ValueError, match="no input set"):
        rotation([], "cold", cache=KIB, memory=KIB)


def test_this_machine_has_a_cache_and_memory() -> None:
    assert 64 * KIB <= cache_bytes(torch.device("cpu")) < 1 << 34
    assert memory_bytes(torch.device("cpu")) > 0


@pytest.mark.parametrize(("text", "size"), [("32768K\n", 32 << 20), ("2M", 2 << 20), ("1G", 1 << 30)])
def test_cache_sizes_as_linux_writes_them(tmp_path, text: str, size: int) -> None:
    file = tmp_path / "size"
    file.write_text(text)
    assert inputs._size_in(file) == size
