"""Choose an algorithm and its rates with scikit-learn's grid search; sites are groups, routed as metadata."""

import numpy as np
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score

import moiety as mo


def make_patients(sites=8, patients=40):
    """Make rows, labels and the site of each row; half of the sites code the label the other way round."""
    rng = np.random.default_rng(0)
    site = np.repeat([f"site-{k}" for k in range(sites)], patients)
    x = rng.normal(size=(sites * patients, 5))
    return x, (x[:, 0] > 0) ^ np.repeat(np.arange(sites) % 2 == 1, patients), site


def main(rounds=30, patients=40):
    """Search with folds that have all sites in training, and then score on sites never seen."""
    x, y, site = make_patients(patients=patients)
    with sklearn.config_context(enable_metadata_routing=True):
        algorithms = [mo.fedavg(shared=0.3), mo.fedalt(shared=0.3, personal=0.3)]
        estimator = mo.PersonalisedClassifier(rounds=rounds)
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        search = GridSearchCV(estimator, {"algorithm": algorithms}, cv=folds).fit(x, y, groups=site)
        for algorithm, score in zip(algorithms, search.cv_results_["mean_test_score"], strict=True):
            print(f"{algorithm.name}: {score:.0%} right")
        new = cross_val_score(estimator, x, y, cv=GroupKFold(4), params={"groups": site})
        print(f"sites never seen, by the shared model: {new.mean():.0%} right")
    return search, new


if __name__ == "__main__":
    main()
