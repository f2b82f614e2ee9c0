"""Other loaders doing the work of benchmarks/images.py, each as its own documentation has it.

A peer is a generator: its first value comes when everything is imported and prepared, every later
one is a batch of 64 random crops, flipped, normalised, 3 x 224 x 224, float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BATCH, SIDE = 64, 224
PEERS = {
    "torchvision, Pillow": "torchvision",
    "torchvision, decode_jpeg + v2": "torchvision",
    "scikit-image tutorial": "skimage",
    "DALI, antialiased": "dali",
    "DALI": "dali",
    "DALI, fast IDCT": "dali",
    "FFCV": "ffcv",
    "Grain, Pillow": "grain",
    "tf.data": "tensorflow",
}
PACKAGES = {
    "torchvision": "torchvision",
    "skimage": "scikit-image",
    "grain": "grain",
    "dali": "nvidia-dali-cuda120",
    "ffcv": "ffcv",
    "tensorflow": "tensorflow-cpu",
}


def torchvision(name: str, folder: Path, workers: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader
    from torchvision import datasets, io
    from torchvision.transforms import v2

    size = v2.RandomResizedCrop(224, antialias=True)
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if "Pillow" in name:
        steps, load = [size, v2.RandomHorizontalFlip(), v2.ToImage(), *floats], None
    else:
        steps = [size, v2.RandomHorizontalFlip(), *floats]

        def load(path: str) -> Any:
            return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)

    yield None
    options = {} if load is None else {"loader": load}
    data = datasets.ImageFolder(str(folder), v2.Compose(steps), **options)
    loader = DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader


def skimage(name: str, folder: Path, workers: int) -> Iterator[Any]:
    """As PyTorch's data loading tutorial has it: imread, transform.resize, ToTensor."""
    import numpy as np
    import torch
    from skimage import io, transform
    from torch.utils.data import DataLoader, Dataset

    class Tutorial(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.paths = sorted(folder.rglob("*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> Any:
            image = io.imread(self.paths[index])
            height, width = image.shape[:2]
            side = int(min(height, width) * np.sqrt(np.random.uniform(0.3, 1)))
            top = np.random.randint(0, height - side + 1)
            left = np.random.randint(0, width - side + 1)
            image = transform.resize(image[top : top + side, left : left + side], (224, 224))
            if np.random.rand() < 0.5:
                image = image[:, ::-1]
            image = (image - np.array(MEAN)) / np.array(STD)
            return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()

    yield None
    loader = DataLoader(
        Tutorial(),
        BATCH,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=True,
    )
    while True:
        yield from loader


def dali(name: str, folder: Path, workers: int) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None)  # type: ignore[untyped-decorator]
    def work() -> Any:
        content, label = fn.readers.file(file_root=str(folder), random_shuffle=True)
        image = fn.decoders.image_random_crop(
            content,
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            use_fast_idct="fast" in name,
        )
        image = fn.resize(
            image, size=(224, 224), interp_type=types.INTERP_LINEAR, antialias="antialiased" in name
        )
        return fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout="CHW",
            mirror=fn.random.coin_flip(),
            mean=[255 * one for one in MEAN],
            std=[255 * one for one in STD],
        ), label

    yield None
    made = work()
    made.build()
    while True:
        yield made.run()


def ffcv(name: str, folder: Path, workers: int) -> Iterator[Any]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from numpy import array, float32
    from torchvision.datasets import ImageFolder

    path = folder.with_suffix(".beton")
    if not path.exists():
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=workers).from_indexed_dataset(
            ImageFolder(str(folder))
        )
    yield None
    normalize = NormalizeImage(255 * array(MEAN), 255 * array(STD), float32)
    steps = [
        RandomResizedCropRGBImageDecoder((224, 224)),
        RandomHorizontalFlip(),
        normalize,
        ToTensor(),
        ToTorchImage(convert_back_int16=False),
    ]
    fields = {"image": steps, "label": [IntDecoder(), ToTensor()]}
    loader = Loader(
        str(path),
        batch_size=BATCH,
        num_workers=workers,
        order=OrderOption.RANDOM,
        drop_last=True,
        pipelines=fields,
    )
    while True:
        yield from loader


def grain(name: str, folder: Path, workers: int) -> Iterator[Any]:
    """Worker processes; decoding is left to the user, here with Pillow."""
    import grain as g
    import numpy as np
    from PIL import Image

    paths = sorted(map(str, folder.rglob("*.jpg")))

    def load(path: str, random: np.random.Generator) -> Any:
        with Image.open(path) as image:
            width, height = image.size
            share = random.uniform(0.08, 1) * width * height
            ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
            across, down = (
                min(width, round((share * ratio) ** 0.5)),
                min(height, round((share / ratio) ** 0.5)),
            )
            left = random.integers(0, width - across + 1)
            top = random.integers(0, height - down + 1)
            box = (left, top, left + across, top + down)
            part = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(part)[:, :: random.choice([1, -1])]
        floats = pixels * np.float32(1 / (255 * np.array(STD))) - np.float32(
            np.array(MEAN) / np.array(STD)
        )
        return np.ascontiguousarray(floats.transpose(2, 0, 1), np.float32)

    yield None
    data = g.MapDataset.source(paths).seed(0).shuffle().random_map(load).batch(BATCH).repeat()
    # An element is a batch here; by default 500 would be read ahead.
    read = g.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    options = g.MultiprocessingOptions(num_workers=workers)
    yield from data.to_iter_dataset(read).mp_prefetch(options)


def tensorflow(name: str, folder: Path, workers: int) -> Iterator[Any]:
    """tf.data, with decode_and_crop_jpeg, which decodes the crop alone."""
    import tensorflow as tf

    paths = sorted(map(str, folder.rglob("*.jpg")))

    def load(path: Any) -> Any:
        content = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(content)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
            max_attempts=10,
        )
        window = [begin[0], begin[1], size[0], size[1]]
        image = tf.image.decode_and_crop_jpeg(content, tf.stack(window), channels=3)
        image = tf.image.resize(image, (SIDE, SIDE), antialias=True)
        image = tf.image.random_flip_left_right(image)
        image = (image - 255 * tf.constant(MEAN)) / (255 * tf.constant(STD))
        return tf.transpose(image, (2, 0, 1))

    yield None
    tf.config.threading.set_inter_op_parallelism_threads(workers)
    tf.config.threading.set_intra_op_parallelism_threads(workers)
    data = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    data = data.map(load, num_parallel_calls=workers).batch(BATCH, drop_remainder=True)
    yield from data.prefetch(2)
