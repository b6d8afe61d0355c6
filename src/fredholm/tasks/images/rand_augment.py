"""RandAugment (Cubuk et al., 2020): a few operations drawn at random, all of one strength; the operations are kornia's.

Deviations: brightness, contrast, colour and sharpness become 1 ± 0.9 m/30 and solarising starts at 1 - m/30, so that
every operation grows with m (the source's 0.1 + 1.8 m/30 does nothing at m = 15); the identity is left out; one draw of
operations serves 16 neighbours in a batch, because kornia applies an operation to a whole tensor.
"""

from .kornia_changes import Change, in_groups, of_kornia

MAX_MAGNITUDE = 30
MAX_OPS = 11  # what a grey image can go through: all but colour, and sharpness where there are 3x3 pixels
_GROUP = 16


def rand_augment(num_ops: int, magnitude: int, *, channels: int, height: int, width: int) -> Change:
    """A change of images in [0, 1] to images of the same shape and range.

    Args:
        num_ops: operations an image goes through, 1 to 11.
        magnitude: their strength m, 1 to 29.
        channels: of the images; colour is among the operations only if it is 3.
        height: of the images.
        width: of the images; sharpness is among the operations only if both sides have 3 pixels.
    """
    from kornia.augmentation.auto import RandAugment

    policy = _policy(magnitude, channels == 3, min(height, width) >= 3)
    operations = RandAugment(num_ops, magnitude, policy=[[operation] for operation in policy])
    return in_groups(of_kornia(operations), _GROUP)


def _policy(
    magnitude: int, has_colour: bool, is_sharpenable: bool
) -> list[tuple[str, int | float, int | float | None]]:
    """List operation, lowest and highest value; the value used lies m/30 of the way between."""
    strength = magnitude / MAX_MAGNITUDE
    # two entries each: a factor's two directions, and for equal chances all others twice (kornia draws a motion's sign)
    policy: list[tuple[str, int | float, int | float | None]] = []
    for factor in (1 - 0.9 * strength, 1 + 0.9 * strength):
        policy += [
            ("auto_contrast", 0, 1),
            ("equalize", 0, 1),
            ("posterize", 4.0, 8.0),  # kornia runs this range backwards: from 8 bits down to 4
            ("solarize", 1 - strength, 1 - strength),
            ("brightness", factor, factor),
            ("contrast", factor, factor),
            ("rotate", -30.0, 30.0),  # degrees
            ("shear_x", -16.7 / 180, 16.7 / 180),  # in half turns: a slope of 0.3
            ("shear_y", -16.7 / 180, 16.7 / 180),
            ("translate_x", -0.45, 0.45),  # of the side: 150 of 331 pixels
            ("translate_y", -0.45, 0.45),
        ]
        if has_colour:
            policy.append(("color", factor, factor))
        if is_sharpenable:
            policy.append(("sharpness", factor, factor))
    return policy
