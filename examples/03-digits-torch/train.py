"""Trains the network on scikit-learn's digits in a few seconds and writes digits.safetensors."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_model
from sklearn.datasets import load_digits
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from model import WEIGHTS, network

TEST = 360  # pictures kept for testing
EPOCHS = 15


def main():
    torch.manual_seed(0)
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    test, train = order[:TEST], order[TEST:]

    model, loss = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            loss(model(pictures[batch]), labels[batch]).backward()
            optimizer.step()

    model.eval()
    with torch.inference_mode():
        right = (model(pictures[test]).argmax(dim=1) == labels[test]).float().mean().item()
    save_model(model, str(WEIGHTS))
    print(f"{WEIGHTS.name}: {right:.1%} of {TEST} unseen digits are right")


if __name__ == "__main__":
    main()
