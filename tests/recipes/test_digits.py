"""The demo chooses its checkpoint on scans that are neither learnt from nor tested on."""

from recipes.digits import digits


def test_a_tenth_of_what_is_not_tested_on_is_for_validation() -> None:
    task = digits().task.build()
    assert (task.num_train, task.num_held_out("valid"), task.num_held_out("test")) == (1293, 144, 360)
