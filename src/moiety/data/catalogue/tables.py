"""The rows of the catalogue that are tables of features."""

from __future__ import annotations

from moiety.data.catalogue.records import DataSet, Original

_UCI = "https://archive.ics.uci.edu/static/public/"
_TERMS = "CC BY 4.0"


def _uci_zip(number: int, slug: str, check: str = "", size: int | None = None) -> tuple[Original, ...]:
    name = f"{slug}.zip"
    return (
        Original(
            name=name,
            addresses=(f"{_UCI}{number}/{name}",),
            check=f"sha256:{check}" if check else "",
            size=size,
        ),
    )


_ISOLET = _uci_zip(54, "isolet", "fe2e0d45f1057d112e051d309070992fc178e7f6922cc7b4e8b2bd310303a053")

TABLES = (
    DataSet(
        name="covtype",
        about="Forest cover in 4 wilderness areas, 15,120 rows, 10 numbers (standardised), 40 soil flags, 7 classes.",
        file="covtype15k.npz",
        originals=(
            Original(
                name="covtype.data.gz",
                addresses=("https://ndownloader.figshare.com/files/5976039",),
                check="sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
            ),
        ),
        converter="tables:convert_covtype",
        licence=_TERMS,
        citation="Blackard and Dean (1999), Comparative accuracies of neural networks and discriminant analysis",
        page="https://archive.ics.uci.edu/dataset/31/covertype",
        lengths={"y": 15_120},
        note="The first 15,120 of 581,012 rows: the training and validation rows of the original description.",
    ),
    DataSet(
        name="isolet",
        about="Spoken letters of 30 speakers (Isolet1), 52 each, 617 features (standardised), 26 classes.",
        file="isolet1.npz",
        originals=_ISOLET,
        converter="tables:convert_isolet",
        licence=_TERMS,
        citation="Cole and Fanty (1994), ISOLET, UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/54/isolet",
        layout="client",
        row=(617,),
        classes=26,
        lengths={"y": 1_560},
        note="The first 1,560 rows; that a block of 52 is one speaker follows from the order of the letters.",
    ),
    DataSet(
        name="isolet-all",
        about="Spoken letters, 6,238 and 1,559 for testing, 617 features (standardised), 26 classes; no speakers.",
        file="isolet.npz",
        originals=_ISOLET,
        converter="tables:convert_isolet_all",
        licence=_TERMS,
        citation="Cole and Fanty (1994), ISOLET, UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/54/isolet",
        layout="split",
        row=(617,),
        classes=26,
        lengths={"y_train": 6_238, "y_test": 1_559},
    ),
    DataSet(
        name="letter",
        about="Printed letters, 16,000 and 4,000 for testing, 16 features (standardised), 26 classes.",
        file="letter.npz",
        originals=_uci_zip(
            59, "letter+recognition", "3b5f07a334697b6cace4fbae22940393a18fee596e73f68d97ce5973d52dc60f"
        ),
        converter="tables:convert_letter",
        licence=_TERMS,
        citation="Slate (1991), Letter Recognition, UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/59/letter+recognition",
        layout="ordered",
        row=(16,),
        classes=26,
        lengths={"y": 20_000},
    ),
    DataSet(
        name="pendigits",
        about="Digits as pen positions, 7,494 and 3,498 for testing, 16 features (standardised), 10 classes.",
        file="pendigits.npz",
        originals=_uci_zip(
            81,
            "pen+based+recognition+of+handwritten+digits",
            "1e02bea023613c2b11c9492f6f34caf975420455934f3527d270cee9a1f03b64",
            1_668_118,
        ),
        converter="tables:convert_pendigits",
        licence=_TERMS,
        citation="Alpaydin and Alimoglu (1998), Pen-Based Recognition of Handwritten Digits, UCI",
        page="https://archive.ics.uci.edu/dataset/81/pen+based+recognition+of+handwritten+digits",
        layout="split",
        row=(16,),
        classes=10,
        lengths={"y_train": 7_494, "y_test": 3_498},
    ),
    DataSet(
        name="satimage",
        about="Land seen from a satellite, 4,435 and 2,000 for testing, 36 features (standardised), 6 classes.",
        file="satimage.npz",
        originals=_uci_zip(
            146, "statlog+landsat+satellite", "7c54e0e11c872a1b0b647da370d596dcb06746159cce4121d92ccd70b7d7ce3c"
        ),
        converter="tables:convert_satimage",
        licence=_TERMS,
        citation="Srinivasan (1993), Statlog (Landsat Satellite), UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/146/statlog+landsat+satellite",
        layout="split",
        row=(36,),
        classes=6,
        lengths={"y_train": 4_435, "y_test": 2_000},
    ),
    DataSet(
        name="sensorless",
        about="Currents of electric drives, 58,509 rows, 48 features (standardised), 11 classes.",
        file="sensorless.npz",
        originals=_uci_zip(325, "dataset+for+sensorless+drive+diagnosis"),
        converter="tables:convert_sensorless",
        licence=_TERMS,
        citation="Bator (2015), Dataset for Sensorless Drive Diagnosis, UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/325/dataset+for+sensorless+drive+diagnosis",
        layout="pool",
        row=(48,),
        classes=11,
        lengths={"y": 58_509},
        note="No checksum of the archive is known, so the numbers of rows and classes are checked.",
    ),
    DataSet(
        name="shuttle",
        about="Space shuttle states, 43,500 and 14,500 for testing, 9 features (standardised), 7 very uneven classes.",
        file="shuttle.npz",
        originals=_uci_zip(148, "statlog+shuttle", "a03e1f23755093eff5b8d9656f944ae3240a376065cf4360d090f5fe0aff9bef"),
        converter="tables:convert_shuttle",
        licence=_TERMS,
        citation="Statlog (Shuttle), UCI Machine Learning Repository",
        page="https://archive.ics.uci.edu/dataset/148/statlog+shuttle",
        layout="ordered",
        row=(9,),
        classes=7,
        lengths={"y": 58_000},
    ),
)
