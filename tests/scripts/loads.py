"""Reads its data with two loader processes."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.arange(100))
total = sum(int(batch.sum()) for (batch,) in DataLoader(data, batch_size=10, num_workers=2))
print(f"loaded {total}")
