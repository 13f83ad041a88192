import pytest

from ktune.build.target import normalise_target, target_of_capability
from ktune.core.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "normal"),
    [
        ("sm_90a", "sm_90a"),
        ("9.0a", "sm_90a"),
        ("9.0", "sm_90"),
        ("8.0", "sm_80"),
        (" sm_80 ", "sm_80"),
        ("10.0f", "sm_100f"),
    ],
)
def test_each_spelling_of_a_target_becomes_the_same_one(typed: str, normal: str) -> None:
    assert normalise_target(typed) == normal


@pytest.mark.parametrize("typed", ["banana", "9.0 8.0", "9.0;8.0", "", "sm_", "90a", "9.0+PTX", "compute_90", "sm_٩٠"])
def test_anything_but_one_architecture_is_a_usage_error_that_repeats_it(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalise_target(typed)
    assert repr(typed) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("typed", ["sm_80a", "8.9a", "9.0f"])
def test_an_architecture_without_features_of_its_own_takes_no_suffix(typed: str) -> None:
    with pytest.raises(UsageError, match=r"has no '[af]' variant"):
        normalise_target(typed)


@pytest.mark.parametrize(("capability", "target"), [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((10, 0), "sm_100a")])
def test_a_gpus_own_target_has_all_of_its_instructions(capability: tuple[int, int], target: str) -> None:
    assert target_of_capability(*capability) == target
