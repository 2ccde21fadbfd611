"""The digests of the files that the papers' results were computed from, by the arrays in them."""

DIGESTS = {
    "audiomnist_mel32.npz": "6ae765f7af8ca30670dbd3ef83e044f6",
    "chars74k_hnd_28.npz": "df5d881d6116bc7de9c8679ef0e73d21",
    "cifar10_jpeg.npz": "a93a3340e35a5ab4ea38859fd8dad304",
    "covtype15k.npz": "6dc68492701e7823a155848deaddad6d",
    "fashion_mnist.npz": "6ecdfd8414289ebd43cb73f3dfc5c756",
    "isolet1.npz": "379be09428003a0f383e97531da19023",
    "letter.npz": "881c0a7d261f14117c5c312d92d490b9",
    "mnist.npz": "f8d7ceda39709bf778cc9534b43139e3",
    "pendigits.npz": "63c6237f21786ac354ba27e24c3044b9",
    "satimage.npz": "b8ec519154dcae275952fbf308d7e12e",
    "shakespeare_roles.npz": "27eedad99b2643c788119982a01c7e71",
    "shuttle.npz": "597bf30f5be294a5e77ede843c87253a",
    "uci_har_inertial.npz": "7643614c9626fc0b137ec1187c2ced9d",
    "usps.npz": "3cc64f6870e32e523e842c0f4d3a0a62",
}
