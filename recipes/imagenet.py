"""Train ITNet on ImageNet-1K at 224 x 224 in the paper's three sizes, or on any folder with a subfolder per class.

Command:   fredholm train imagenet_small --task.data FOLDER
           fredholm train imagenet_base --task.data FOLDER
           fredholm train imagenet_large --task.data FOLDER
Modality:  images
Data:      ImageNet-1K, 1,281,167 + 50,000 images
Get:       https://image-net.org, or any FOLDER with train and val, each with a subfolder per class; then --task.data
           FOLDER
Hardware:  meant for one or several GPUs of 80 GB each; not run
Time:      not run
Score:     not run. The paper's ITNet-B reaches 83.9 % top-1 with exact kernels (ITNet, table 17), 3 seeds

From the paper (K.1, H.4, H.3): patches of 16 at 224 x 224, AdamW, a cosine schedule with linear warmup, 300 epochs,
RandAugment, Mixup, CutMix, label smoothing, stochastic depth that rises to 0.1, 0.2 and 0.3, an average of the weights.

The rows of its table 14 were missing from the text at hand. The numbers here are those of DeiT (Touvron et al., 2021),
which match its "standard large-scale training practices": batches of 1,024 at a rate of 1e-3, warmup of 5 epochs,
weight decay 0.05, RandAugment 2 at 9, Mixup 0.8, CutMix 1.0, smoothing 0.1, decay of the average 0.9999.

Deviations: images are scaled to cover 224 x 224, cropped to the centre, flipped, and magnified by up to a half, where
DeiT takes random crops; test images are cropped in the same way, without DeiT's margin of 32 pixels.
"""

from fredholm.models import ITNet
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig


def imagenet_small() -> Run.Config:
    """Train ITNet-S, 12 layers of 384 channels, on images of 224 x 224 pixels."""
    return _run(ITNet.Config.small(), accumulation=8)


def imagenet_base() -> Run.Config:
    """Train ITNet-B, 12 layers of 768 channels, on images of 224 x 224 pixels."""
    return _run(ITNet.Config.base(), accumulation=16)


def imagenet_large() -> Run.Config:
    """Train ITNet-L, 24 layers of 1,024 channels, on images of 224 x 224 pixels."""
    return _run(ITNet.Config.large(), accumulation=32)


def _run(model: ITNet.Config, *, accumulation: int) -> Run.Config:
    return Run.Config(
        task=ImageLearning.Config(
            valid_fraction=0.0,
            data="imagenet",
            image_size=(224, 224),
            patch_size=16,
            model=model,
            augmentation=Augmentation.Config(
                scale=(1.0, 1.5),
                horizontal_flip=0.5,
                rand_augment_ops=2,
                rand_augment_magnitude=9,
                mixup_alpha=0.8,
                cutmix_alpha=1.0,
                label_smoothing=0.1,
            ),
        ),
        training=TrainingConfig(
            epochs=300,
            batch_size=1024,
            accumulation=accumulation,
            learning_rate=1e-3,
            final_learning_rate=1e-5,
            warmup_fraction=5 / 300,
            weight_decay=0.05,
            ema_decay=0.9999,
            precision="bfloat16",
            num_workers=12,
            checkpoint_every=1000,
            log_every=50,
        ),
    )
