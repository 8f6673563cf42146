"""Cards by name: the memory that they show, and names that say too little or nothing."""

import pytest

from mmrl.app.planning.memory import CARD_SIZES, GIB, gigabytes_of, plain_name, room


@pytest.mark.parametrize(
    ("card", "gib"),
    [
        ("RTX 4090", 24 * 0.98),
        ("nvidia geforce rtx 4090", 24 * 0.98),
        ("T4", 15),
        ("Tesla T4", 15),
        ("A100-40", 40 * 0.98),
        ("a100 80GB", 80 * 0.98),
        ("H100-80", 80 * 0.98),
        ("rtx4060ti-16gb", 16 * 0.98),
        ("H200", 141 * 0.98),
    ],
)
def test_a_card_is_known_by_its_name(card: str, gib: float, caplog: pytest.LogCaptureFixture):
    assert gigabytes_of(card) == gib and room(card) == int(gib * GIB)
    assert ("T4 has no bfloat16 units" in caplog.text) == ("T4" in card)


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ("A100", 'sold in 2 sizes: write "A100-40" or "A100-80"'),
        ("RTX 4091", r"not known here \(do you mean RTX 4090\?\): write its memory as in --card 24GB"),
        ("A100-60", "not known here.*A100-40"),
        ("", "write its memory as in --card 24GB"),
        ("a toaster", "write its memory as in --card 24GB"),
        ("0GB", "'0GB', which has no memory: write its memory as in --card 24GB"),
        ("0.0", "which has no memory"),
        ("1.2.3GB", "write its memory as in --card 24GB"),
    ],
)
def test_names_that_say_too_little_or_nothing_are_refused(card: str, told: str):
    with pytest.raises(ValueError, match=told):
        room(card)


def test_every_name_in_the_table_is_found():
    assert len({plain_name(name) for name in CARD_SIZES}) == len(CARD_SIZES)
    for name, sizes in CARD_SIZES.items():
        for size in sizes:
            assert 0.9 * size < gigabytes_of(name if len(sizes) == 1 else f"{name}-{size}") < size
