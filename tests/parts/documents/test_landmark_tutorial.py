"""PyTorch's data loading tutorial as people type it, with scikit-image in dataset and steps."""

import numpy as np
import pandas as pd
import torch
from skimage import io, transform
from torch.utils.data import Dataset
from torchvision import transforms

from penstock import DataLoader


class FaceLandmarksDataset(Dataset):
    def __init__(self, csv_file, root_dir, transform=None):
        self.landmarks_frame = pd.read_csv(csv_file)
        self.root_dir, self.transform = root_dir, transform

    def __len__(self):
        return len(self.landmarks_frame)

    def __getitem__(self, idx):
        image = io.imread(self.root_dir / self.landmarks_frame.iloc[idx, 0])
        landmarks = np.array([self.landmarks_frame.iloc[idx, 1:]], dtype=float).reshape(-1, 2)
        sample = {"image": image, "landmarks": landmarks}
        return self.transform(sample) if self.transform else sample


class Rescale:
    def __init__(self, output_size):
        self.output_size = output_size

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        scale = self.output_size / min(h, w)
        new_h, new_w = int(h * scale), int(w * scale)
        img = transform.resize(image, (new_h, new_w))
        return {"image": img, "landmarks": landmarks * [new_w / w, new_h / h]}


class RandomCrop:
    def __init__(self, output_size):
        self.output_size = output_size

    def __call__(self, sample):
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        top = np.random.randint(0, h - self.output_size + 1)
        left = np.random.randint(0, w - self.output_size + 1)
        image = image[top : top + self.output_size, left : left + self.output_size]
        return {"image": image, "landmarks": landmarks - [left, top]}


class ToTensor:
    def __call__(self, sample):
        image, landmarks = sample["image"].transpose((2, 0, 1)), sample["landmarks"]
        return {"image": torch.from_numpy(image), "landmarks": torch.from_numpy(landmarks)}


def test_the_tutorials_own_classes_run_and_repeat(tmp_path):
    draw = np.random.default_rng(0)
    rows = []
    for number in range(8):
        image = draw.integers(0, 256, (60 + number, 80, 3), dtype=np.uint8)
        io.imsave(tmp_path / f"{number}.png", image, check_contrast=False)
        rows.append([f"{number}.png", *draw.integers(0, 60, 4)])
    columns = ["image_name", "part_0_x", "part_0_y", "part_1_x", "part_1_y"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "faces.csv", index=False)
    steps = transforms.Compose([Rescale(50), RandomCrop(44), ToTensor()])
    dataset = FaceLandmarksDataset(tmp_path / "faces.csv", tmp_path, steps)

    def batches(workers):
        loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers, seed=0)
        return [(batch["image"].clone(), batch["landmarks"].clone()) for batch in loader]

    expected = batches(0)
    assert expected[0][0].shape == (4, 3, 44, 44)
    assert expected[0][1].shape == (4, 2, 2)
    for (image, points), (same, alike) in zip(batches(2), expected, strict=True):
        assert torch.equal(image, same)
        assert torch.equal(points, alike)
