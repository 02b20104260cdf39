"""`cifar-cnn`: a small convolutional model for colour images; 1,626,442 parameters on 3x32x32 and ten classes."""

from torch import nn

from tacit.parts.models import Shape, features_of, image

SMALLEST = 6  # pixels a side: two 3x3 convolutions without padding, then pooling


def cifar_cnn(*, input_shape: Shape, classes: int) -> nn.Module:
    """Two 3x3 convolutions without padding, one pooling, two dense layers."""
    channels, _ = image("cifar-cnn", input_shape, smallest=SMALLEST)
    first, second = nn.Conv2d(channels, 32, 3), nn.Conv2d(32, 64, 3)
    features = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(
        *features, nn.Linear(features_of(features, input_shape), 128), nn.ReLU(), nn.Linear(128, classes)
    )
