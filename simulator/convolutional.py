"""Convolutional networks layer by layer: parameters, FLOPs and bytes of the ImageNet classics.

Example:
    >>> sum(layer.parameters for layer in convolutional_layers("resnet50"))
    25557032
"""

from __future__ import annotations

from dataclasses import dataclass

from dtgym.simulator.errors import one_of

NAMES = ("alexnet", "vgg16", "vgg19", "resnet50", "resnet101", "resnet152")
"""Networks that `convolutional_layers` knows, all on 224 x 224 images with 1000 classes."""

_VGG = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_RESNET = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


@dataclass(frozen=True, slots=True)
class ConvolutionalLayer:
    """A convolution (with the batch norm behind it, if any) or a fully connected layer.

    Attributes:
        name: Name of the layer.
        parameters: Weights, biases and norm.
        forward_flops: Multiplications and additions of one image, forward.
        output_elements: Elements of the output of one image.
    """

    name: str
    parameters: int
    forward_flops: float
    output_elements: int

    def weight_bytes(self, bytes_per_element: float = 4.0) -> float:
        """Bytes of the weights, and of their gradients."""
        return self.parameters * bytes_per_element

    def output_bytes(self, images: int, bytes_per_element: float = 4.0) -> float:
        """Bytes of the output for a batch of images."""
        return float(images) * self.output_elements * bytes_per_element


def convolutional_layers(name: str) -> tuple[ConvolutionalLayer, ...]:
    """Layers with weights, in forward order.

    Args:
        name: One of `NAMES`.

    Raises:
        InvalidInput: Unknown name.

    Source:
        Krizhevsky 2014 (one-tower AlexNet); Simonyan and Zisserman 2015, configurations D and E;
        He et al. 2016, table 1, with the stride in the 3 x 3 convolution as in the common
        implementations. Totals equal those of the released checkpoints.
    """
    one_of("name", name, NAMES)
    if name == "alexnet":
        return _alexnet()
    return _vgg(_VGG[name]) if name in _VGG else _resnet(_RESNET[name])


def _convolution(
    name: str, inputs: int, outputs: int, kernel: int, size: int, *, norm: bool = False
) -> ConvolutionalLayer:
    """A convolution with `size` x `size` outputs; a bias unless a norm follows."""
    weights = inputs * outputs * kernel * kernel
    extra = 2 * outputs if norm else outputs
    return ConvolutionalLayer(
        name, weights + extra, 2.0 * weights * size * size, outputs * size * size
    )


def _linear(name: str, inputs: int, outputs: int) -> ConvolutionalLayer:
    return ConvolutionalLayer(name, (inputs + 1) * outputs, 2.0 * inputs * outputs, outputs)


def _alexnet() -> tuple[ConvolutionalLayer, ...]:
    return (
        _convolution("conv1", 3, 64, 11, 55),
        _convolution("conv2", 64, 192, 5, 27),
        _convolution("conv3", 192, 384, 3, 13),
        _convolution("conv4", 384, 256, 3, 13),
        _convolution("conv5", 256, 256, 3, 13),
        _linear("fc6", 256 * 6 * 6, 4096),
        _linear("fc7", 4096, 4096),
        _linear("fc8", 4096, 1000),
    )


def _vgg(repeats: tuple[int, ...]) -> tuple[ConvolutionalLayer, ...]:
    layers: list[ConvolutionalLayer] = []
    inputs, size = 3, 224
    for stage, (count, width) in enumerate(zip(repeats, (64, 128, 256, 512, 512), strict=True)):
        for index in range(count):
            name = f"conv{stage + 1}_{index + 1}"
            layers.append(_convolution(name, inputs, width, 3, size))
            inputs = width
        size //= 2
    layers += [_linear("fc6", 512 * 7 * 7, 4096), _linear("fc7", 4096, 4096)]
    return (*layers, _linear("fc8", 4096, 1000))


def _resnet(repeats: tuple[int, ...]) -> tuple[ConvolutionalLayer, ...]:
    layers = [_convolution("conv1", 3, 64, 7, 112, norm=True)]
    inputs, size = 64, 56
    for stage, (count, width) in enumerate(zip(repeats, (64, 128, 256, 512), strict=True)):
        for index in range(count):
            name = f"layer{stage + 1}.{index}"
            strided = index == 0 and stage > 0
            # The first 1 x 1 convolution of a striding block still works at the finer size.
            fine = size * 2 if strided else size
            layers.append(_convolution(f"{name}.conv1", inputs, width, 1, fine, norm=True))
            layers.append(_convolution(f"{name}.conv2", width, width, 3, size, norm=True))
            layers.append(_convolution(f"{name}.conv3", width, 4 * width, 1, size, norm=True))
            if index == 0:
                name = f"{name}.downsample"
                layers.append(_convolution(name, inputs, 4 * width, 1, size, norm=True))
            inputs = 4 * width
        size //= 2
    return (*layers, _linear("fc", 2048, 1000))
