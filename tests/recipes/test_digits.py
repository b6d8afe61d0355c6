"""The demo chooses its checkpoint on scans outside the training and test splits."""

from recipes.digits import digits


def test_a_tenth_of_the_scans_outside_the_test_split_is_for_validation() -> None:
    task = digits().task.build()
    assert (task.num_train, task.num_held_out("valid"), task.num_held_out("test")) == (1293, 144, 360)
